"""The election on a server with a standby, fake or real: what is held back from the standby is lost by a failover."""

import asyncio
import os
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from pgelect._engine.model import Grant, LockKey
from pgelect.testing import Postgres
from pgelect.testing._fake_data import Commit
from pgelect.testing.fake import FakeServer
from tests.contract.election import WITHIN_S, Election
from tests.contract.on_fake import FakeElection
from tests.contract.on_postgres import PostgresElection, prepare
from tests.support.replication import TIMELINE, Pair
from tests.support.server import query


class Replicated(Election):
    """Failovers go one after another: the server that died comes back as the standby of the other."""

    async def a_term(self, identity: str = "a", *, clean: bool = True) -> Grant:
        """A term that has begun and ended, by an unlock or by the end of its session."""
        session, grant = await self.leading(identity)
        if clean:
            await session.unlock(grant.token, WITHIN_S)
        await session.close(WITHIN_S)
        await self.is_free()
        return grant

    @abstractmethod
    async def hold_back(self) -> None:
        """The standby has all that was written so far, and receives nothing from here on."""

    @abstractmethod
    async def caught_up(self) -> None:
        """Wait until the standby has all that was written so far."""

    @abstractmethod
    async def fail_over(self) -> None:
        """The primary dies, its sessions end, and the standby becomes primary with what it has."""

    @abstractmethod
    async def rejoin(self) -> None:
        """The server that died is the standby now."""

    @abstractmethod
    def on_standby(self) -> Election:
        """The same election as somebody sees it who is led to the standby."""

    @abstractmethod
    def demoted(self) -> AbstractAsyncContextManager[None]:
        """Inside the block the primary is a standby. At its end it is promoted again."""

    @abstractmethod
    async def promoted_more_often(self, by: int) -> None:
        """The row looks as pg_upgrade leaves it: written by a cluster on a timeline ahead of this one's by so many."""

    @abstractmethod
    async def sequence(self) -> int:
        """The last number of the sequence of tokens, as the primary has it."""

    @abstractmethod
    async def use_up(self, numbers: int) -> None:
        """Have other locks of the same database take so many numbers from it."""


class FakeReplicated(FakeElection, Replicated):
    """On the fake server, whose address stays the same."""

    def __init__(self, key: LockKey) -> None:
        super().__init__(key, FakeServer())

    async def hold_back(self) -> None:
        self.server.hold_back()

    async def caught_up(self) -> None:
        """It always has, unless it is held back."""

    async def fail_over(self) -> None:
        self.server.fail_over()

    async def rejoin(self) -> None:
        """It has."""

    async def promoted_more_often(self, by: int) -> None:
        data = self.server._cluster.data
        last = data.row(self.key)
        assert last is not None
        data.timeline += by
        data.commit(Commit(row=replace(last, token=last.token + by * TIMELINE)))
        data.timeline -= by

    def on_standby(self) -> Election:
        standby = FakeServer()
        standby.demote()
        return FakeElection(self.key, standby)

    @asynccontextmanager
    async def demoted(self) -> AsyncIterator[None]:
        self.server.demote()
        yield
        self.server.promote()

    async def sequence(self) -> int:
        return self.server._cluster.data._sequence

    async def use_up(self, numbers: int) -> None:
        for _ in range(numbers):
            self.server._cluster.data.next_value()


class PostgresReplicated(PostgresElection, Replicated):
    """In a database on two servers; after a failover all goes to the other one."""

    def __init__(self, key: LockKey, pair: Pair, dbname: str) -> None:
        super().__init__(key, pair.primary.dsn(dbname))
        self.pair = pair
        self.dbname = dbname

    async def hold_back(self) -> None:
        await asyncio.to_thread(self.pair.hold_back)

    async def caught_up(self) -> None:
        await asyncio.to_thread(self.pair.caught_up)

    async def fail_over(self) -> None:
        await asyncio.to_thread(self.pair.fail_over)
        self.dsn = self._session_dsn = self.pair.primary.dsn(self.dbname)

    async def rejoin(self) -> None:
        await asyncio.to_thread(self.pair.rejoin)

    async def promoted_more_often(self, by: int) -> None:
        ahead = "UPDATE pgelect.token SET timeline = timeline + %s, token = token + %s WHERE key1 = %s AND key2 = %s"
        await asyncio.to_thread(query, self.dsn, ahead, by, by * TIMELINE, self.key.key1, self.key.key2)

    async def sequence(self) -> int:
        rows = await asyncio.to_thread(query, self.dsn, "SELECT last_value FROM pgelect.token_seq")
        return int(rows[0][0])

    async def use_up(self, numbers: int) -> None:
        drawn = "SELECT count(nextval('pgelect.token_seq')) FROM generate_series(1, %s)"
        await asyncio.to_thread(query, self.dsn, drawn, numbers)

    def on_standby(self) -> PostgresElection:
        return PostgresElection(self.key, self.pair.standby.dsn(self.dbname))

    @asynccontextmanager
    async def demoted(self) -> AsyncIterator[None]:
        await asyncio.to_thread(_make_standby, self.pair.primary)
        yield
        await asyncio.to_thread(self.pair.primary.promote)


def _make_standby(server: Postgres) -> None:
    server.stop()
    signal = server.data_dir / "standby.signal"
    signal.touch()
    owner = server.data_dir.stat()
    os.chown(signal, owner.st_uid, owner.st_gid)
    server.start()


@asynccontextmanager
async def on_pair(
    pair: Pair, key: tuple[int, int], dbname: str, *, prepared: bool = True
) -> AsyncIterator[PostgresReplicated]:
    """An election in a new database, which is dropped at the end: a later standby is a copy of everything."""
    query(pair.primary.dsn(), f"CREATE DATABASE {dbname} TEMPLATE template0")
    made = PostgresReplicated(LockKey(*key), pair, dbname)
    if prepared:
        prepare(made.dsn)
    pair.caught_up()
    try:
        yield made
    finally:
        await made.close()
        query(pair.primary.dsn(), f"DROP DATABASE {dbname} WITH (FORCE)")
