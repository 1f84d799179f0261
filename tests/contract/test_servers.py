"""Which servers the contract runs on: PostgreSQL 15, 16 and 18, and nothing else unnoticed."""

import os
from pathlib import Path

import pytest

from pgelect.testing import Postgres, find_installed
from tests.support import environment


def test_the_contract_is_held_to_three_major_versions(pg_debian: Postgres, pg16: Postgres, pg18: Postgres) -> None:
    assert (pg16.version, pg18.version) == (16, 18)
    if environment.OTHER in os.environ:
        return
    if environment.in_ci() or environment.INSTALLED in find_installed():
        assert pg_debian.version == 15
    assert f"PostgreSQL {pg_debian.version}" in environment.named_installed()


@pytest.mark.parametrize("ci", ["", "true"])
def test_15_is_taken_even_where_a_newer_one_is_installed(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    _machine(monkeypatch, 15, 17, ci=ci)
    assert environment.installed_programs() == Path("/15")
    assert environment.named_installed() == "PostgreSQL 15"


def test_a_desk_without_15_takes_the_newest_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, 14, 17)
    assert environment.installed_programs() == Path("/17")
    assert environment.named_installed() == "PostgreSQL 17, for want of 15"


@pytest.mark.parametrize("versions", [(), (14, 17)])
def test_ci_fails_without_15(monkeypatch: pytest.MonkeyPatch, versions: tuple[int, ...]) -> None:
    _machine(monkeypatch, *versions, ci="true")
    with pytest.raises(pytest.fail.Exception, match=r"an installed PostgreSQL 15 .* is missing"):
        environment.installed_programs()


def test_a_desk_without_any_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch)
    with pytest.raises(pytest.skip.Exception, match="PostgreSQL 15"):
        environment.installed_programs()
    assert "not installed" in environment.named_installed()


def test_another_one_is_taken_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, 15, ci="true")
    monkeypatch.setenv(environment.OTHER, "/17/bin")
    assert environment.installed_programs() == Path("/17/bin")
    assert environment.named_installed() == "/17/bin, as PGELECT_TEST_POSTGRES says"


def _machine(monkeypatch: pytest.MonkeyPatch, *versions: int, ci: str = "") -> None:
    """A machine on which these are installed."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.delenv(environment.OTHER, raising=False)
    monkeypatch.setattr(environment, "find_installed", lambda: {version: Path(f"/{version}") for version in versions})
