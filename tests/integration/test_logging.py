"""The log: a line for each transition, silence in steady state, few lines in an outage; no password ever."""

import asyncio
import gc
import logging
import re
import traceback

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import pgelect
from pgelect import FixedInterval, LeaderLock, SessionLostError
from pgelect.testing._places import free_port
from tests.support.duties import serving_stubbornly
from tests.support.locks import SHORT_LEASE, Key, Story, leading, make_lock, queueing
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, query, terminate
from tests.support.waiting import eventually, scaled

SECRET = "s3cret"
TRANSITION = re.compile(r"(\w+) -> (\w+)")


def _records(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name.startswith("pgelect") and record.levelno >= level]


async def test_each_transition_is_one_line_with_the_key_and_the_reason(
    database: str, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pgelect")
    lock = make_lock(database, key)
    story = Story(lock)
    async with lock:
        await lock.wait_for_leadership(scaled(10))
        await lock.step_down(cooldown_s=0.0)
        await lock.wait_for_leadership(scaled(10))
        terminate(database, lock_holders(database, *key)[0])
        await story.tells("acquired", "released", "acquired", "lost", "acquired")
    logged = [TRANSITION.search(record.getMessage()) for record in _records(caplog, logging.DEBUG)]
    assert [(match[1], match[2]) for match in logged if match] == [(a.value, b.value) for a, b in story.states]
    assert all(str(lock.key) in record.getMessage() for record in _records(caplog))
    lost = [record for record in _records(caplog) if "leader -> follower" in record.getMessage()]
    assert [record.levelname for record in lost] == ["WARNING"]
    assert "ended" in lost[0].getMessage()


async def test_only_leadership_is_told_at_info(database: str, key: Key, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pgelect")
    async with leading(database, key) as lock:
        await lock.step_down(cooldown_s=3600)
    told = [TRANSITION.search(record.getMessage()) for record in _records(caplog)]
    assert [match and match[0] for match in told] == [
        "stopped -> follower",
        "acquiring -> leader",
        "leader -> releasing",
        "releasing -> follower",
        "follower -> stopped",
    ]
    assert {record.name for record in _records(caplog)} == {"pgelect"}
    assert {record.levelno for record in _records(caplog)} == {logging.INFO}


async def test_nothing_is_logged_in_steady_state(database: str, key: Key, caplog: pytest.LogCaptureFixture) -> None:
    """Over many proofs of the leader, several slices of a follower in the queue and many polls of another."""
    caplog.set_level(logging.INFO, "pgelect")
    settings = {"health_interval_s": 0.05, "retry_strategy": FixedInterval(0.05)}
    async with (
        leading(database, key, **settings) as leader,
        queueing(database, key, **settings),
        make_lock(database, key, **settings, acquire="poll") as polling,
    ):
        story = Story(polling)
        caplog.clear()
        began = query(database, "SELECT clock_timestamp()")[0][0]
        await eventually(lambda: query(database, "SELECT clock_timestamp() - %s > '2.5 s'", began)[0][0])
        assert _records(caplog) == []
        assert leader.is_leader_confirmed_within(1.0)
        assert len(story.failures) > 10


async def test_while_the_server_is_away_one_line_stands_for_many_attempts(
    key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pgelect")
    lock = LeaderLock(f"host=127.0.0.1 port={free_port()}", *key, retry_strategy=FixedInterval(0.005))
    story = Story(lock)
    async with lock:
        await eventually(lambda: len(story.errors) > 50)
    warnings = _records(caplog, logging.WARNING)
    assert len(warnings) == 1
    assert "cannot connect" in warnings[0].getMessage()
    assert warnings[0].exc_info is None


async def test_the_lines_left_out_are_counted_in_the_next(
    key: Key, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgelect._engine.journal.REPEAT_AFTER_S", 0.1)
    lock = LeaderLock(f"host=127.0.0.1 port={free_port()}", *key, retry_strategy=FixedInterval(0.01))
    async with lock:
        await eventually(lambda: len(_records(caplog, logging.WARNING)) == 3)
    assert re.search(r"\(\d+ more like it", _records(caplog, logging.WARNING)[1].getMessage())


async def test_a_lock_that_gives_up_says_so_as_an_error(key: Key, caplog: pytest.LogCaptureFixture) -> None:
    lock = LeaderLock(f"host=127.0.0.1 port={free_port()}", *key, retry_strategy=_never_again)
    with pytest.raises(pgelect.ConnectionError):
        await lock.run()
    errors = _records(caplog, logging.ERROR)
    assert len(errors) == 1
    assert "gave up" in errors[0].getMessage()


class _NeverAgain:
    def next_delay_s(self, ctx: object) -> None:
        return None


_never_again = _NeverAgain()


async def test_a_callback_that_raises_is_logged_with_its_traceback(
    database: str, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    lock = make_lock(database, key)

    @lock.on_released
    def fail() -> None:
        raise ZeroDivisionError("on purpose")

    async with lock:
        await lock.wait_for_leadership(scaled(10))
    (error,) = _records(caplog, logging.ERROR)
    assert error.exc_info is not None
    assert error.exc_info[0] is ZeroDivisionError
    assert "on_released" in error.getMessage()


def _everything(caplog: pytest.LogCaptureFixture, *told: object) -> str:
    """All that was logged, with tracebacks, and all texts of these objects and of the errors behind them."""
    formatter = logging.Formatter("%(message)s")
    texts = [formatter.format(record) for record in caplog.records if record.name.startswith("pgelect")]
    for thing in told:
        texts += [str(thing), repr(thing)]
        if isinstance(thing, BaseException):
            texts += [*traceback.format_exception(thing), *map(str, thing.args), str(vars(thing))]
    return "\n".join(texts)


@pytest.mark.parametrize("form", ["conninfo", "uri", "callable"])
async def test_the_password_is_in_no_log_line_repr_or_exception(
    database: str, key: Key, caplog: pytest.LogCaptureFixture, proxy: BreakableProxy, form: str
) -> None:
    caplog.set_level(logging.DEBUG, "pgelect")
    parts = psycopg.conninfo.conninfo_to_dict(proxy.dsn(database))
    conninfo = make_conninfo(proxy.dsn(database), password=SECRET)
    uri = f"postgresql://{parts['user']}:{SECRET}@{parts['host']}:{parts['port']}/{parts['dbname']}"
    settings = {**SHORT_LEASE, "retry_strategy": FixedInterval(0.05)}
    if form == "callable":
        lock = LeaderLock(lambda: uri, *key, **settings)
    else:
        lock = LeaderLock({"conninfo": conninfo, "uri": uri}[form], *key, **settings)
    story = Story(lock)
    proxy.refuse()
    async with lock:
        await eventually(lambda: len(story.errors) > 2)
        proxy.refuse(False)
        await story.tells("acquired")
        proxy.freeze()
        await story.tells("acquired", "lost")
        proxy.cut()
        proxy.thaw()
        await lock.wait_for_leadership(scaled(10))
        assert lock.term is not None
        texts = _everything(caplog, lock, lock.term, lock.record, lock.bounds(), lock._settings, *story.errors)
        assert "leader" in texts
        assert SECRET not in texts
    assert SECRET not in _everything(caplog)


@pytest.mark.parametrize("wrong", ["dbname", "user", "host"])
async def test_a_refused_login_shows_no_password(
    database: str, key: Key, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    caplog.set_level(logging.DEBUG, "pgelect")
    dsn = make_conninfo(database, password=SECRET, **{wrong: "no-such.invalid"})
    lock = LeaderLock(dsn, *key, retry_strategy=_never_again)
    with pytest.raises(pgelect.ConnectionError) as gave_up:
        await lock.run()
    assert isinstance(gave_up.value.last_error, SessionLostError)
    texts = _everything(caplog, gave_up.value, gave_up.value.last_error, lock)
    assert "cannot connect" in texts
    assert SECRET not in texts


async def test_a_duty_that_is_left_behind_is_a_warning(
    database: str, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    async with leading(database, key, drain_timeout_s=0.1) as lock, serving_stubbornly(lock):
        await lock.step_down(cooldown_s=3600)
        (warning,) = _records(caplog, logging.WARNING)
        assert "still runs" in warning.getMessage()


async def test_asyncio_has_nothing_to_complain_of(database: str, key: Key, caplog: pytest.LogCaptureFixture) -> None:
    """No exception that was never retrieved, no task that was destroyed while pending, in a life full of failures."""
    loop, complaints = asyncio.get_running_loop(), list[dict[str, object]]()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    lock = make_lock(database, key)
    story = Story(lock)
    async with lock:
        for rounds in range(3):
            await story.tells(*["acquired", "lost"] * rounds, "acquired")
            terminate(database, lock_holders(database, *key)[0])
        await story.tells(*["acquired", "lost"] * 3, "acquired")
        await lock.step_down(cooldown_s=0.0)
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []
    assert not [record for record in caplog.records if record.name == "asyncio"]
