"""A server that is not ready yet, and everything else that can answer in its place: waited for, told, never fatal.

Errors of connecting carry no SQLSTATE, so nothing may depend on which of them it was.
"""

import asyncio
import os
import shlex
import signal
import struct
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import tenacity
from psycopg.conninfo import make_conninfo

import pgelect
from pgelect import LeaderLock, LockState, SessionLostError
from pgelect.testing import Postgres
from tests.support.databases import fresh_database
from tests.support.electors import Elector, one_leads
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually

Key = tuple[int, int]
ASKS_FOR_ENCRYPTION = (80877103, 80877104)  # SSLRequest, GSSENCRequest


@pytest.fixture
def own_database(own_server: Postgres, last_of_all: ExitStack) -> str:
    return last_of_all.enter_context(fresh_database(own_server))


# A real server


@pytest.fixture
def held_up(own_server: Postgres, own_database: str, tmp_path: Path) -> Path:
    """The server is down, and its next start hangs in recovery until this file is there."""
    gate = own_server.data_dir / "recovery_may_end"
    own_server.stop("immediate")
    waits = f"for i in $(seq 600); do [ -e {shlex.quote(str(gate))} ] && break; sleep 0.05; done; false"
    own_server.configure(restore_command=waits)
    signal_file = own_server.data_dir / "recovery.signal"
    signal_file.touch()
    owner = own_server.data_dir.stat()
    os.chown(signal_file, owner.st_uid, owner.st_gid)
    return gate


async def test_a_server_that_is_down_and_then_starting_up_is_waited_for(
    own_server: Postgres, own_database: str, held_up: Path, key: Key
) -> None:
    async with Elector(own_database, key) as a:
        await a.hears(SessionLostError, "refused")
        starting = asyncio.create_task(asyncio.to_thread(own_server.start))
        error = await a.hears(SessionLostError, "starting up")
        assert getattr(error, "reason", "") == "connect"
        seen = len(a.errors)
        await eventually(lambda: len(a.errors) > seen + 3, message="it keeps trying")
        assert a.lock.state is LockState.FOLLOWER
        assert a.looks.spans == []
        assert not starting.done()
        held_up.touch()
        await starting
        term = await a.leads()
        assert a.terms == [("acquired", term.token)]
        await eventually(
            lambda: lock_holders(own_database, *key) == [one.pid for one in sessions(own_database)],
            message="no other session is left",
        )


async def test_a_crash_of_one_backend_which_drops_all_sessions_leaves_one_leader(
    own_server: Postgres, own_database: str, key: Key
) -> None:
    """The server ends every session, and starts up anew by itself."""
    async with Elector(own_database, key) as a, Elector(own_database, key) as b, Elector(own_database, key) as c:
        token = 0
        for _ in range(3):
            leader = await one_leads(a, b, c, above=token)
            token = leader.lock.token or 0
            await eventually(lambda: len(lock_waiters(own_database, *key)) == 2, message="two wait in the queue")
            before = {one.pid for one in sessions(own_database)}
            os.kill(lock_holders(own_database, *key)[0], signal.SIGKILL)
            await leader.has_lost(token)
            await eventually(partial(_sees_others, own_database, before), 30, "three new sessions")
        await one_leads(a, b, c, above=token)
        assert len(lock_holders(own_database, *key)) == 1
        for elector in (a, b, c):
            elector.check_pairs()
            assert elector.lock.state is not LockState.STOPPED


def _sees_others(dsn: str, before: set[int]) -> bool:
    try:
        now = {one.pid for one in sessions(dsn)}
    except Exception:  # noqa: BLE001 -- the server is starting up
        return False
    return len(now) == 3 and not now & before


# Something that answers in place of a server


def fatal(sqlstate: str, text: str) -> bytes:
    """Render the error with which a server ends a connection."""
    fields = b"".join(
        kind + value.encode() + b"\0"
        for kind, value in ((b"S", "FATAL"), (b"V", "FATAL"), (b"C", sqlstate), (b"M", text))
    )
    return b"E" + struct.pack("!i", len(fields) + 5) + fields + b"\0"


REFUSALS = {
    "57P03 starting up": fatal("57P03", "the database system is starting up"),
    "57P03 shutting down": fatal("57P03", "the database system is shutting down"),
    "57P03 not yet accepting": fatal("57P03", "the database system is not yet accepting connections"),
    "53300 full": fatal("53300", "sorry, too many clients already"),
    "28P01 password": fatal("28P01", "password authentication failed"),
    "28000 no entry": fatal("28000", "no pg_hba.conf entry for host"),
    "3D000 no database": fatal("3D000", "the database does not exist"),
    "42501 no right": fatal("42501", "permission denied for database"),
    "08P01 pooler": fatal("08P01", "server login has been failing"),
    "0A000 protocol": fatal("0A000", "unsupported frontend protocol"),
    "XX000 internal": fatal("XX000", "something unheard of"),
    "unknown authentication": b"R" + struct.pack("!ii", 8, 99),
    "another protocol": b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
    "half a word": b"R\0\0",
    "nothing": b"",
    "login and no more": b"R" + struct.pack("!ii", 8, 0),
}


@asynccontextmanager
async def impostor(answer: bytes) -> AsyncIterator[tuple[int, list[int]]]:
    """Something on a port that gives everybody this answer and closes; its port, and a list that grows by each call."""
    calls: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                length, code = struct.unpack("!ii", await reader.readexactly(8))
                await reader.readexactly(length - 8)
                if code not in ASKS_FOR_ENCRYPTION:
                    break
                writer.write(b"N")
            calls.append(code)
            writer.write(answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], calls


@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS.keys())
async def test_whatever_refuses_a_connection_is_tried_again_and_told(database: str, key: Key, answer: bytes) -> None:
    ways: list[str] = []
    async with impostor(answer) as (port, calls):
        ways = [make_conninfo(database, port=port)] * 3
        async with Elector(lambda: ways.pop() if ways else database, key) as a:
            term = await a.leads()
            assert len(a.errors) == len(calls) == 3
            assert all(isinstance(error, SessionLostError) and error.reason == "connect" for error in a.errors)
            if answer.startswith(b"E"):
                said = answer.split(b"\0M")[1].split(b"\0")[0].decode()
                assert all(said in str(error) for error in a.errors)
            assert set(a.states[: a.states.index(LockState.LEADER)]) <= {
                LockState.STOPPED,
                LockState.FOLLOWER,
                LockState.ACQUIRING,
            }
            assert a.terms == [("acquired", term.token)]
            assert len(lock_holders(database, *key)) == 1


async def test_a_refusal_while_reconnecting_does_not_end_the_election(database: str, key: Key) -> None:
    """The same after a session that worked: of a term in its grace, and of one that is lost at once."""
    async with impostor(REFUSALS["57P03 starting up"]) as (port, calls):
        refused = make_conninfo(database, port=port)
        for grace_s in (None, 30.0):
            ways: list[str] = []
            async with Elector(lambda ways=ways: ways.pop() if ways else database, key, reconnect_grace_s=grace_s) as a:
                token = (await a.leads()).token
                ways.extend([refused] * 3)
                calls.clear()
                query(database, "SELECT pg_terminate_backend(%s)", lock_holders(database, *key)[0])
                await eventually(lambda: a.states.count(LockState.LEADER) == 2, message="it leads again")
                assert len(calls) == 3
                assert ["starting up" in str(error) for error in a.errors].count(True) == 3
                if grace_s:
                    assert a.terms == [("acquired", token)]
                else:
                    await a.leads(above=token)
                assert len(lock_holders(database, *key)) == 1


async def test_who_gives_up_says_what_the_server_said_last(database: str, key: Key) -> None:
    async with impostor(REFUSALS["57P03 starting up"]) as (port, calls):
        strategy = (tenacity.wait_fixed(0.01), tenacity.stop_after_attempt(3))
        lock = LeaderLock(make_conninfo(database, port=port), *key, retry_strategy=strategy)
        with pytest.raises(pgelect.ConnectionError, match="starting up") as gave_up:
            await lock.run()
        assert len(calls) == gave_up.value.attempts == 3
        assert isinstance(gave_up.value.last_error, SessionLostError)
        assert "the database system is starting up" in str(gave_up.value.last_error)
        assert lock.state is LockState.STOPPED
