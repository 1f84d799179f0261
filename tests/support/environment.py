"""What the machine has: a missing server or pooler is a named skip at a desk, and a failure in CI."""

import os
from pathlib import Path
from typing import NoReturn

import pytest

from pgelect.testing import find_installed

INSTALLED = 15
"""The major version that the system is to have: the package that the other servers come from has only newer ones."""

OTHER = "PGELECT_TEST_POSTGRES"
"""Names a directory of programs of another server, to run on it what otherwise runs on the installed one."""


def in_ci() -> bool:
    """Whether this is a CI run, where nothing may be skipped for lack of a program."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


def installed_programs() -> Path:
    """The programs of that version; at a desk without it, those of the newest that there is."""
    if other := os.environ.get(OTHER):
        return Path(other)
    found = find_installed()
    if INSTALLED not in found and (not found or in_ci()):
        there = f"only {', '.join(map(str, found))}" if found else "none"
        missing(f"an installed PostgreSQL {INSTALLED} (Debian's postgresql-{INSTALLED}; there is {there})")
    return found.get(INSTALLED) or found[max(found)]


def named_installed() -> str:
    """Which version that is, for the head of a test report."""
    if other := os.environ.get(OTHER):
        return f"{other}, as {OTHER} says"
    found = find_installed()
    if not found:
        return f"not installed (PostgreSQL {INSTALLED} is asked for)"
    return f"PostgreSQL {INSTALLED}" if INSTALLED in found else f"PostgreSQL {max(found)}, for want of {INSTALLED}"


def missing(what: str) -> NoReturn:
    """Skip the test, or fail it in CI."""
    if in_ci():
        pytest.fail(f"{what} is missing, and in CI it has to be there")
    pytest.skip(f"{what} is missing")
