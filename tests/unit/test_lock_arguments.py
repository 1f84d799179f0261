"""LeaderLock's constructor: what it refuses, by name and without ever showing a password."""

import asyncio
import traceback
from collections import OrderedDict
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

from pgelect import FixedInterval, LeaderLock, LockKey
from pgelect._postgres.options import SessionOptions
from pgelect._postgres.session import PostgresSession

PASSWORD = "hunter2"


def make(**arguments: Any) -> LeaderLock:
    return LeaderLock(**{"key1": 5001, "key2": 1, **arguments})


# The key


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "jobs", "key1": 1, "key2": 2},
        {"name": "jobs", "key1": 1},
        {"name": "jobs", "key2": 2},
        {"name": "jobs", "key1": 0, "key2": 0},
        {"name": "", "key1": 1, "key2": 2},
    ],
)
def test_a_name_and_keys_at_once_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^give either name or key1 and key2, not both$"):
        LeaderLock("", **arguments)


@pytest.mark.parametrize("arguments", [{}, {"key1": 1}, {"key2": 2}, {"key1": 0}])
def test_neither_a_name_nor_both_keys_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^a lock needs either name, or both key1 and key2$"):
        LeaderLock("", **arguments)


def test_keys_may_stand_in_their_places_after_the_dsn() -> None:
    assert LeaderLock("", 5001, -1).key == LockKey(5001, -1)


def test_zeros_are_keys() -> None:
    assert make(key1=0, key2=0).key == LockKey(0, 0)


@pytest.mark.parametrize("name", ["key1", "key2"])
def test_a_key_beyond_32_bits_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}=2147483648 is outside the signed 32-bit range"):
        make(**{name: 2**31})


@pytest.mark.parametrize("name", ["key1", "key2"])
def test_a_key_that_is_no_int_is_refused_by_name(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name} must be an int, not str$"):
        make(**{name: "1"})


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^name must not be empty$"):
        LeaderLock(name="")


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^name must be a str, not int$"):
        LeaderLock(name=7)  # type: ignore[arg-type]  # this is what must not work


def test_all_but_the_first_three_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        LeaderLock("", 1, 2, "jobs")  # type: ignore[call-arg]  # this is what must not work


# The DSN


@pytest.mark.parametrize(
    "dsn",
    [
        f"host=db password='{PASSWORD}",
        f"host=db password={PASSWORD} nonsense",
        f"host=db {PASSWORD}",
        f"postgresql://me:{PASSWORD}@[::1/jobs",
        f"postgresql://me:{PASSWORD}@db/jobs?no_such_option={PASSWORD}",
        f"postgresql://me:%zz{PASSWORD}@db/jobs",
    ],
)
def test_a_dsn_that_cannot_be_parsed_is_refused_without_showing_the_password(dsn: str) -> None:
    with pytest.raises(ValueError, match=r"^dsn cannot be parsed: ") as caught:
        make(dsn=dsn)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    assert PASSWORD not in str(caught.value)
    assert caught.value.__context__ is None  # what the driver says quotes the DSN, and reporters walk the contexts


@pytest.mark.parametrize("dsn", [None, 5, b"host=db", ["host=db"], {"host": "db"}])
def test_a_dsn_that_is_neither_text_nor_callable_is_refused(dsn: object) -> None:
    with pytest.raises(TypeError, match=rf"^dsn must be a str or a callable .*, not {type(dsn).__name__}$"):
        make(dsn=dsn)


async def _asked() -> str:
    return "host=db"


@pytest.mark.parametrize(
    "dsn",
    ["", "host=db", "postgresql://me@db/jobs", "postgres://db1,db2/jobs", lambda: "host=db", _asked, partial(str, "")],
    ids=["empty", "pairs", "uri", "hosts", "function", "async function", "partial"],
)
def test_a_dsn_may_be_text_or_asked_for(dsn: Any) -> None:
    assert make(dsn=dsn).state == "stopped"


def test_nothing_that_is_printed_shows_the_dsn() -> None:
    dsn = f"host=db.internal user=jobs password={PASSWORD}"
    lock = make(dsn=dsn, identity="me", name=None)
    assert repr(lock) == "<LeaderLock (5001, 1) 'me' stopped>"
    options = SessionOptions(key=lock.key, identity="me", lease_s=15.0, dsn=dsn)
    for shown in (repr(lock), str(lock), repr(options), repr(PostgresSession(options))):
        assert PASSWORD not in shown
        assert "db.internal" not in shown


def test_the_repr_shows_the_name() -> None:
    assert repr(LeaderLock(name="jobs", identity="me")).startswith("<LeaderLock 'jobs' (")


# The rest


def test_metrics_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^metrics must have a method for_lock"):
        make(metrics=object())


@pytest.mark.parametrize("event", [object(), True, asyncio.Event])
def test_a_shutdown_event_of_another_kind_is_refused(event: object) -> None:
    """A threading.Event among them: nothing could await it."""
    with pytest.raises(TypeError, match=r"^shutdown_event must be an asyncio.Event, not "):
        make(shutdown_event=event)


def test_a_shutdown_event_may_be_made_before_there_is_a_loop() -> None:
    assert make(shutdown_event=asyncio.Event()).state == "stopped"


@pytest.mark.parametrize("connect_fn", ["host=db", 5, object()])
def test_a_connect_fn_that_cannot_be_called_is_refused(connect_fn: object) -> None:
    with pytest.raises(TypeError, match=r"^connect_fn must be an async callable"):
        make(connect_fn=connect_fn)


@pytest.mark.parametrize("strategy", [None, 5, FixedInterval, "fast"])
def test_a_retry_strategy_that_is_none_is_refused(strategy: object) -> None:
    with pytest.raises(TypeError, match="is not a retry strategy"):
        make(retry_strategy=strategy)


@pytest.mark.parametrize("strategy", [FixedInterval(1.0), wait_fixed(1), (wait_fixed(1), stop_after_attempt(3))])
def test_a_retry_strategy_may_be_ours_or_tenacitys(strategy: Any) -> None:
    assert make(retry_strategy=strategy).state == "stopped"


@pytest.mark.parametrize("name", ["health_interval_s", "lease_s", "takeover_delay_s", "drain_timeout_s"])
def test_a_duration_is_refused_by_the_name_it_was_given(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}=-1 must be"):
        make(**{name: -1})
    with pytest.raises(TypeError, match=rf"^{name} must be a number of seconds"):
        make(**{name: None})


def test_a_grace_without_fencing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^reconnect_grace_s needs fencing=True"):
        make(reconnect_grace_s=3.0, fencing=False)


def test_metadata_that_json_cannot_carry_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^metadata must be a mapping that JSON can carry"):
        make(metadata={"since": object()})


@pytest.mark.parametrize("metadata", [{}, OrderedDict(zone="a"), MappingProxyType({"zone": ["a"]})])
def test_metadata_may_be_any_mapping(metadata: Any) -> None:
    assert make(metadata=metadata).state == "stopped"


def test_an_identity_is_made_when_none_is_given_and_kept_when_one_is() -> None:
    assert make(identity="pod-7").identity == "pod-7"
    first, second = make(), make()
    assert first.identity != second.identity
    assert first.identity == first.identity


def test_an_empty_identity_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^identity must not be empty"):
        make(identity="")


def test_two_locks_share_no_default() -> None:
    """A callback or metadata of one must not show up at the other."""
    first, second = make(), make()
    first.on_error(print)
    assert first._runner.dispatcher._callbacks != second._runner.dispatcher._callbacks
    assert first._settings.metadata is not second._settings.metadata
