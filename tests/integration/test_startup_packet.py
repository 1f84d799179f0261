"""What goes out with the first packet of a connection: nothing but what the user gave, for poolers refuse the rest."""

import asyncio
import itertools
import logging
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgelect import LockState
from tests.support.electors import Elector
from tests.support.pgbouncer import PgBouncer
from tests.support.server import lock_holders, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
Packet = dict[str, str]
OPTIONS = "-c idle_session_timeout=5000"
CANCEL, ENCRYPTION = 80877102, (80877103, 80877104)


@asynccontextmanager
async def eavesdropped(upstream_port: int) -> AsyncIterator[tuple[int, list[Packet]]]:
    """A way to the server on which the parameters of every startup packet are read; its port, and these."""
    packets: list[Packet] = []
    pumps: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(8)
            length, code = struct.unpack("!ii", head)
            body = await reader.readexactly(length - 8)
            if code not in ENCRYPTION:
                break
            writer.write(b"N")
        if code != CANCEL:
            words = body.decode().rstrip("\0").split("\0")
            packets.append(dict(zip(words[::2], words[1::2], strict=True)))
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", upstream_port)
        up_writer.write(head + body)
        for ways in ((reader, up_writer), (up_reader, writer)):
            task = asyncio.create_task(pump(*ways))
            pumps.add(task)
            task.add_done_callback(pumps.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], packets
        if pumps:
            await asyncio.wait(pumps, timeout=5)


@pytest.mark.parametrize("given", [{}, {"options": OPTIONS}, {"application_name": "mine"}], ids=str)
async def test_a_startup_packet_has_nothing_but_what_the_user_gave(any_database: str, key: Key, given: Packet) -> None:
    """Regression: settings went out as startup options, which a pooler refuses; and the check failed only there."""
    async with eavesdropped(int(str(conninfo_to_dict(any_database)["port"]))) as (through, packets):
        dsn = make_conninfo(any_database, port=through, **given)
        async with Elector(dsn, key, lease_s=10.0) as a:
            token = (await a.leads()).token
            terminate(any_database, lock_holders(any_database, *key)[0])
            await a.leads(above=token)
        assert len(packets) >= 2
        for packet in packets:
            assert {name: packet.pop(name) for name in given} == given
            assert set(packet) <= {"user", "database", "client_encoding"}


@pytest.mark.parametrize("grace_s", [None, 30.0])
async def test_startup_options_that_are_refused_later_are_told_in_a_line_and_leave_a_way_back(
    pgbouncer: Callable[..., PgBouncer],
    database: str,
    key: Key,
    grace_s: float | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They come into the DSN while the lock runs: it does not lead, says why, and leads once they are gone."""
    pooler = pgbouncer("session", 5)
    good, bad = pooler.through(database), pooler.through(database, options=OPTIONS)
    ways = itertools.chain([good], [bad] * 4, itertools.repeat(good))
    caplog.set_level(logging.DEBUG, "pgelect")
    async with Elector(lambda: next(ways), key, lease_s=10.0, reconnect_grace_s=grace_s) as a:
        term = await a.leads()
        terminate(database, lock_holders(database, *key)[0])
        error = await a.hears(Exception, "unsupported startup parameter")
        assert "\n" not in str(error)
        await eventually(lambda: a.states.count(LockState.LEADER) == 2, message="it leads again")
        between = a.states[a.states.index(LockState.LEADER) + 1 : -1]
        if grace_s:
            assert between == [LockState.RECONNECTING]
            assert a.terms == [("acquired", term.token)]
        else:
            assert set(between) <= {LockState.FOLLOWER, LockState.ACQUIRING}
            assert a.tokens("lost") == [term.token]
        assert len(lock_holders(database, *key)) == 1
    assert ["unsupported startup parameter" in str(error) for error in a.errors].count(True) == 4
    assert not [record for record in caplog.records if record.exc_info], "a traceback was logged"


async def test_startup_options_work_where_the_server_takes_them(database: str, key: Key) -> None:
    """Without a pooler they are the user's right; the lock's own settings win all the same."""
    short = make_conninfo(database, options="-c idle_session_timeout=300 -c statement_timeout=1 -c geqo=off")
    async with Elector(short, key, lease_s=10.0, health_interval_s=1.0) as a:
        term = await a.leads()
        await a.proved(1)
        assert a.terms == [("acquired", term.token)]
        assert a.errors == []
