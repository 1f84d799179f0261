"""How subcommands end: the exit code that each kind of failure means, one line without a password, and no traceback."""

import asyncio
import errno
import signal

import psycopg
import pytest
import typer

import pgelect
from pgelect.cli.ending import Code, describe, perform, told
from pgelect.errors import ConnectionError as GaveUpError

FAILURES: list[tuple[Exception, int]] = [
    (pgelect.SessionLostError("connect", "cannot connect"), 3),
    (GaveUpError(3, None), 3),
    (pgelect.NotPrimaryError("a:5432"), 3),
    (OSError(errno.ECONNREFUSED, "refused"), 3),
    (psycopg.OperationalError("gone"), 3),
    (pgelect.PoolerError("transaction"), 4),
    (pgelect.SchemaError("missing", "CREATE"), 4),
    (pgelect.UnsupportedServerError(130000), 4),
    (pgelect.PgElectError("the server refused"), 4),
    (psycopg.errors.UndefinedTable("no table"), 4),
    (ValueError("dsn cannot be parsed"), 2),
    (ImportError("pip install 'pgelect[http]'"), 2),
]


@pytest.mark.parametrize(("error", "code"), FAILURES, ids=lambda value: type(value).__name__)
def test_a_failure_is_one_line_and_its_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        perform("probe", work())
    assert ended.value.exit_code == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pgelect probe: ")
    assert "Traceback" not in err


@pytest.mark.parametrize(("answer", "code"), [(None, 0), (0, 0), (Code.NO, 1), (7, 7)])
def test_what_the_work_returns_is_the_exit_code(answer: int | None, code: int) -> None:
    async def work() -> int | None:
        return answer

    with pytest.raises(typer.Exit) as ended:
        perform("probe", work())
    assert ended.value.exit_code == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_work_clean_up_and_then_ends_it(number: signal.Signals) -> None:
    cleaned = []

    async def work() -> None:
        try:
            signal.raise_signal(number)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)

    with pytest.raises(typer.Exit) as ended:
        perform("probe", work())
    assert ended.value.exit_code == 128 + number
    assert cleaned == [number]


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(KeyError), told("probe"):
        raise KeyError("ours")


def test_no_password_is_told() -> None:
    assert "hush" not in describe(pgelect.PgElectError("cannot use postgresql://me:hush@host/db password=hush"))


def test_sql_for_an_administrator_is_shown_when_it_is_short() -> None:
    told_of = describe(pgelect.SchemaError("this role may not use the fence", "GRANT a;\nGRANT b;"))
    assert told_of.endswith("in the same database:\n\nGRANT a;\nGRANT b;")
    assert told_of.splitlines()[0].startswith("this role may not use the fence. ")


def test_a_long_schema_is_not_shown_but_where_to_get_it() -> None:
    told_of = describe(pgelect.SchemaError("the schema is missing", pgelect.schema_sql()))
    assert len(told_of.splitlines()) == 1
    assert told_of.startswith("the schema is missing. ")
    assert "pgelect init --print" in told_of
