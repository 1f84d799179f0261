"""The contract suite notices when the lock, the unlock, the proof or the fence is taken out of the library.

Holds off tests that pass whatever the code does (a fault like open-ace/open-ace#2862, where the lock was gone at the
helper's rollback and the assertion could not fail): the package and its tests are copied and broken, and the suite of
the copy has to fail, by assertions and not by an error. Unbroken, the copy passes.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import psycopg
import pytest

import pgelect
from tests.support.waiting import TIMEOUT_SCALE, scaled

PACKAGE = Path(pgelect.__file__).parent
TESTS = Path(__file__).parents[1]
SETTINGS = TESTS.parent / "pyproject.toml"
WAITS = 0.3  # of the usual deadlines: what was taken out never comes
SUITE = [f"tests/contract/test_{part}.py" for part in ("locking", "losing", "fence")]
FREED = "unlock_is_true_once_and_false_when_nothing_is_held"
TAKEN = "the_first_to_try_gets_the_lock_and_the_next_is_refused"
PROVED = "a_holder_proves_it_and_who_does_not_hold_cannot"
FENCED = "a_check_holds_off_a_mint_until_its_transaction_ends and _commit and committed"


@dataclass(frozen=True, slots=True)
class Break:
    """What is to be broken: in that file, this text is replaced; and the test that is to notice it."""

    file: str
    old: str
    new: str
    noticed_by: str


REAL = {
    "the lock is never taken": Break(
        "pgelect/_postgres/campaign_sql.py",
        'attempt: Composable = SQL("pg_catalog.pg_try_advisory_lock({})").format(sql.pair(key))',
        'attempt: Composable = SQL("true")',
        PROVED,
    ),
    "the lock lasts for a transaction": Break(
        "pgelect/_postgres/campaign_sql.py",
        'attempt: Composable = SQL("pg_catalog.pg_try_advisory_lock({})")',
        'attempt: Composable = SQL("pg_catalog.pg_try_advisory_xact_lock({})")',
        FREED,
    ),
    "the lock is never freed": Break(
        "pgelect/_postgres/sql.py",
        'return SQL("SELECT pg_catalog.pg_advisory_unlock({})").format(pair(key))',
        'return SQL("SELECT true")',
        FREED,
    ),
    "the proof looks at nothing": Break(
        "pgelect/_postgres/campaign_sql.py",
        '"SELECT coalesce(bool_or(l.granted AND l.objsubid = 2 AND l.pid = pg_catalog.pg_backend_pid() ',
        '"SELECT coalesce(bool_or(true OR l.pid = pg_catalog.pg_backend_pid() ',
        PROVED,
    ),
    "the fence is a plain read": Break(
        "pgelect/_postgres/schema.sql",
        "    FOR SHARE OF t;",
        "    ;",
        FENCED,
    ),
}
FAKE = {
    "the lock is never taken": (
        """
from dataclasses import replace
from pgelect.testing.fake import FakeSession

_try_lock = FakeSession.try_lock
async def _granted(self, ghost, within_s):
    return replace(await _try_lock(self, ghost, within_s), granted=True)
FakeSession.try_lock = _granted
""",
        TAKEN,
    ),
    "the lock is never freed": (
        """
from pgelect.testing.fake import FakeSession

async def _freed(self, token, within_s):
    return True
FakeSession.unlock = _freed
""",
        FREED,
    ),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package and its tests, to be broken."""
    leave_out = shutil.ignore_patterns("integration", "unit", "simulation")
    shutil.copytree(PACKAGE, tmp_path / "pgelect", ignore=leave_out)
    shutil.copytree(TESTS, tmp_path / "tests", ignore=leave_out)
    shutil.copytree(TESTS.parent / "benchmarks", tmp_path / "benchmarks")  # some of its tools are the tests', too
    shutil.copy(SETTINGS, tmp_path)
    return tmp_path


def run(copy: Path, tests: str, scale: float = 1.0) -> tuple[int, list[str], int]:
    """Run these tests of the copy: how many passed, how those failed that did, and how many ended in an error."""
    report = copy / "report.xml"
    command = ["-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *SUITE, "-k", tests]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**kept, "PYTHONPATH": str(copy), "PGELECT_TEST_TIMEOUT_SCALE": str(scale * TIMEOUT_SCALE)}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=copy, env=environment, capture_output=True, text=True, timeout=scaled(100), check=False,
    )  # fmt: skip
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    cases = list(ET.parse(report).iter("testcase"))
    failures = [failure.get("message", "") for case in cases for failure in case.findall("failure")]
    errors = sum(case.find("error") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    return len(cases) - len(failures) - errors - skipped, failures, errors


def test_unbroken_the_copy_passes(copy: Path) -> None:
    real = f"pg18 and ({FREED} or {TAKEN} or {PROVED} or ({FENCED}))"
    fake = f"fake and ({FREED} or {TAKEN})"
    assert run(copy, f"({real}) or ({fake})") == (6, [], 0)


def noticed(failures: list[str]) -> bool:
    """By an assertion: any other exception would show nothing of what the assertions are worth."""
    return len(failures) == 1 and failures[0].startswith(("AssertionError", "assert "))


@pytest.mark.parametrize("change", REAL.values(), ids=REAL.keys())
def test_on_a_real_server_the_suite_notices_that(copy: Path, change: Break) -> None:
    path = copy / change.file
    text = path.read_text(encoding="utf-8")
    assert change.old in text, "what is to be broken looks different now: mend this test"
    path.write_text(text.replace(change.old, change.new), encoding="utf-8")
    passed, failures, _ = run(copy, f"pg18 and {change.noticed_by}", WAITS)
    assert passed == 0
    assert noticed(failures), failures


@pytest.mark.parametrize(("change", "noticed_by"), FAKE.values(), ids=FAKE.keys())
def test_on_the_fake_server_the_suite_notices_that(copy: Path, change: str, noticed_by: str) -> None:
    conftest = copy / "tests" / "contract" / "conftest.py"
    conftest.write_text(conftest.read_text(encoding="utf-8") + change, encoding="utf-8")
    passed, failures, errors = run(copy, f"fake and {noticed_by}", WAITS)
    assert (passed, errors) == (0, 0)
    assert noticed(failures), failures


# The mix-up itself

HELD = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
KINDS: list[tuple[str, Callable[[psycopg.Connection], None], int]] = [
    ("pg_try_advisory_lock", psycopg.Connection.rollback, 1),
    ("pg_try_advisory_lock", psycopg.Connection.commit, 1),
    ("pg_try_advisory_xact_lock", psycopg.Connection.rollback, 0),
    ("pg_try_advisory_xact_lock", psycopg.Connection.commit, 0),
]


@pytest.mark.parametrize(("function", "end", "left"), KINDS)
def test_only_a_session_lock_outlives_its_transaction(
    database: str, function: str, end: Callable[[psycopg.Connection], None], left: int
) -> None:
    """What the server does: so the lock of a term is one of the session."""
    with psycopg.connect(database) as conn:
        assert conn.execute(f"SELECT {function}(1, 2)".encode()).fetchone() == (True,)
        end(conn)
        assert conn.execute(HELD).fetchone() == (left,)
