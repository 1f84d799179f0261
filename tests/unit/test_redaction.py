"""No password in anything that the library says, whichever way it was given and whoever put it into a text."""

import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo

import pgelect
from pgelect import LeaderLock
from pgelect._postgres.errors import one_line, secrets_of
from tests.support.said import all_said

SECRET = "s3cret"


# Texts, of libpq or of a user's own code


@pytest.mark.parametrize(
    "text",
    [
        f"host=h password={SECRET} user=u",
        f"host=h password = '{SECRET} {SECRET}' user=u",
        f"password='\\'{SECRET}' host=h",
        f"password='{SECRET}\\\\' host=h",
        f"password=x\\ {SECRET} host=h",
        f"password=x&{SECRET}",
        f"password=x,{SECRET};{SECRET}",
        f"PASSWORD={SECRET}",
        f"sslpassword={SECRET}",
        f"passwd={SECRET}",
        f"pwd={SECRET}",
        f"PGPASSWORD={SECRET} psql failed",
        f"oauth_client_secret={SECRET}",
        f"scram_client_key={SECRET} scram_server_key={SECRET}",
        f"{{'user': 'u', 'password': '{SECRET}'}}",
        f'{{"user": "u", "password": "{SECRET}"}}',
        f"connect(user='u', password='{SECRET}')",
        f"password: {SECRET}",
        f"postgresql://u:{SECRET}@h/db",
        f"postgres://u:{SECRET}@h1:1,h2:2/db?sslmode=require",
        f"postgresql+psycopg://u:{SECRET}@h/db",
        f"postgresql://u:x@{SECRET}@h/db",
        f"postgresql://u:x/{SECRET}@h/db",
        f"postgresql://u:x?{SECRET}#{SECRET}@h/db",
        f"postgresql://:{SECRET}@/db",
        f"postgresql://h/db?user=u&password={SECRET}&sslpassword={SECRET}",
        f"cannot use\n  postgresql://u:{SECRET}@h/db\n  at all",
    ],
)
def test_a_text_with_a_password_is_told_without_it(text: str) -> None:
    told = one_line(text)
    assert SECRET not in told
    assert "***" in told
    assert "\n" not in told


@pytest.mark.parametrize(
    "text",
    [
        'FATAL: password authentication failed for user "u"',
        "fe_sendauth: no password supplied",
        'role "u" has no password assigned.',
        'connection to server at "127.0.0.1", port 5432 failed: Connection refused',
        "ratio 3:4 at user@host",
    ],
)
def test_a_text_without_a_password_is_told_as_it_is(text: str) -> None:
    assert one_line(text) == text


@pytest.mark.parametrize("password", ["a  b", "a\nb", " a", "***", "a'b\\c", "p@ss/w:rd%"])
def test_a_known_password_is_taken_out_wherever_it_stands(password: str) -> None:
    dsn = make_conninfo("", host="h", password=password)
    assert secrets_of(dsn) == (password,)
    assert one_line(f"could not do it with >{password}< here", secrets_of(dsn)) == "could not do it with >***< here"


def test_each_option_of_libpq_that_is_a_password_is_known_for_one() -> None:
    """Asked of libpq itself, so that one of a newer version is not forgotten: it marks them with an asterisk."""
    marked = [option.keyword.decode() for option in pq.Conninfo.get_defaults() if b"*" in option.dispchar]
    marked += [one for one in ("scram_client_key", "scram_server_key") if _is_option(one)]
    assert {"password", "sslpassword"} <= set(marked)
    for name in marked:
        assert secrets_of(f"host=h {name}={SECRET}") == (SECRET,), name


def _is_option(name: str) -> bool:
    return any(option.keyword.decode() == name for option in pq.Conninfo.get_defaults())


# Arguments that are wrong


@pytest.mark.parametrize(
    "dsn",
    [f"host=h {SECRET}", f"postgresql://u:{SECRET}@[::1/db", f"postgresql://u:%zz{SECRET}@h/db", f"u:{SECRET}@h/db"],
)
def test_a_dsn_that_cannot_be_parsed_leaves_nothing_of_it_in_the_error(dsn: str) -> None:
    """Regression: what libpq said of it, with the password, was hidden from tracebacks and kept as the context."""
    with pytest.raises(ValueError, match="dsn cannot be parsed") as caught:
        LeaderLock(dsn, 1, 2)
    assert SECRET not in all_said([], caught.value)


@pytest.mark.parametrize("dsn", [f"password={SECRET}".encode(), {"password": SECRET}, [SECRET], SECRET.encode()])
def test_a_dsn_of_a_wrong_type_is_named_by_its_type_only(dsn: Any) -> None:
    with pytest.raises(TypeError, match="dsn must be a str or a callable") as caught:
        LeaderLock(dsn, 1, 2)
    assert SECRET not in all_said([], caught.value)


def test_the_lock_and_its_parts_do_not_show_the_dsn() -> None:
    lock = LeaderLock(f"host=h password={SECRET}", 1, 2)
    inside = [lock, lock.bounds(), lock._settings, lock._runner, lock._new_runner, lock._runner.snapshot]
    assert SECRET not in all_said([], *inside, vars(lock), vars(lock._runner), vars(lock._runner._performer))


# Attempts that fail


class _Never:
    def next_delay_s(self, ctx: object) -> None:
        return None


async def said_by(caplog: pytest.LogCaptureFixture, **arguments: Any) -> str:
    """All that a lock says that is started with these arguments and cannot connect."""
    caplog.set_level("DEBUG", "pgelect")
    lock = LeaderLock(key1=1, key2=2, retry_strategy=_Never(), **arguments)
    heard: list[object] = []
    lock.on_error(heard.append)
    lock.on_acquire_failed(heard.append)
    with pytest.raises(pgelect.PgElectError) as caught:
        await lock.start()
    assert heard
    said = all_said(caplog.records, caught.value, *heard, lock)
    assert "Traceback" not in "".join(record.getMessage() for record in caplog.records)
    return said


TEXT = f"tried postgresql://u:{SECRET}@h/db with {{'password': '{SECRET}'}}"
RAISES = [
    ValueError(TEXT),
    KeyError(TEXT),
    psycopg.OperationalError(TEXT),
    OSError(5, TEXT),
    ExceptionGroup(TEXT, [ValueError(TEXT)]),
]


def _raising(error: Exception) -> Callable[[], str]:
    def fail() -> str:
        raise error

    return fail


def _raising_later(error: Exception) -> Callable[[], Awaitable[Any]]:
    async def fail() -> Any:
        raise error from ValueError(TEXT)

    return fail


@pytest.mark.parametrize("error", RAISES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("how", ["dsn", "async dsn", "connect_fn"])
async def test_what_a_callable_raises_is_told_without_passwords_and_not_kept(
    caplog: pytest.LogCaptureFixture, how: str, error: Exception
) -> None:
    """Regression: the error of the user's code, DSN and all, was kept as the context of ours."""
    arguments: dict[str, dict[str, Any]] = {
        "dsn": {"dsn": _raising(error)},
        "async dsn": {"dsn": _raising_later(error)},
        "connect_fn": {"connect_fn": _raising_later(error)},
    }
    said = await said_by(caplog, **arguments[how])
    assert type(error).__name__ in said
    assert SECRET not in said


@pytest.mark.parametrize(
    "rubbish",
    [
        None,
        5,
        f"password={SECRET}".encode(),
        {"password": SECRET},
        SECRET,
        f"host=h {SECRET}",
        f"postgresql://u:x/{SECRET}@127.0.0.1/db",
        f"postgresql://u:x@{SECRET}@127.0.0.1/db",
        f"host=127.0.0.1 port=1 password={SECRET}",
        f"host='{SECRET}' password={SECRET}",
        f"host=127.0.0.1 port={SECRET} password={SECRET}",
        f"service={SECRET} password={SECRET}",
        f"host=127.0.0.1 port=1 sslmode={SECRET} password={SECRET}",
        f"dbname=postgresql://u:{SECRET}@127.0.0.1/db host=127.0.0.1 port=1",
    ],
    ids=repr,
)
@pytest.mark.parametrize("how", ["dsn", "connect_fn"])
async def test_rubbish_from_a_callable_is_refused_without_showing_it(
    caplog: pytest.LogCaptureFixture, how: str, rubbish: Any
) -> None:
    async def give() -> Any:
        return rubbish

    said = await said_by(caplog, **{how: give})
    assert SECRET not in said


async def test_a_traceback_of_an_error_that_was_given_up_on_has_no_password_either(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lock = LeaderLock(_raising(ValueError(TEXT)), 1, 2, retry_strategy=_Never())
    with pytest.raises(pgelect.ConnectionError) as caught:
        async with lock:
            pass
    assert SECRET not in "".join(traceback.format_exception(caught.value))
