"""What the machine has: a missing server or pooler is a named skip at a desk, and a failure in CI."""

import os
from typing import NoReturn

import pytest


def in_ci() -> bool:
    """Whether this is a CI run, where nothing may be skipped for lack of a program."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


def missing(what: str) -> NoReturn:
    """Skip the test, or fail it in CI."""
    if in_ci():
        pytest.fail(f"{what} is missing, and in CI it has to be there")
    pytest.skip(f"{what} is missing")
