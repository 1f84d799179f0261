"""An open session as the parts of this package share it: its link, its options, what is known of its server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import tuple_row

from pgelect._engine.session import LockAnswer
from pgelect._postgres import sql
from pgelect.errors import KeyCollisionError, PoolerError

if TYPE_CHECKING:
    from typing import TypeAlias

    from psycopg.sql import Composable

    from pgelect._engine.model import Backend, LeaderRecord
    from pgelect._postgres.link import Deadline, Link
    from pgelect._postgres.options import SessionOptions

    Rows: TypeAlias = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a session knows of itself and its server.

    Attributes:
        backend: this session.
        nonce: what we set in it; a server session without that is not the one we set up.
        database: the oid of its database.
        slice_s: how long one wait in the server's queue lasts at most, in seconds.
        announces: this role may write down who leads; False with an earlier version of the schema, too.
    """

    backend: Backend
    nonce: str
    database: int
    slice_s: float
    announces: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that passed the guards."""

    link: Link
    options: SessionOptions
    facts: Facts

    async def ask(self, query: Composable, deadline: Deadline, doing: str) -> list[Rows]:
        """One simple query, one round trip: the rows of each of its statements that has columns."""

        async def work(conn: AsyncConnection[Any]) -> list[Rows]:
            return await results(conn, query)

        return await self.link.run(work, deadline, doing)

    async def answer(self, query: Composable, deadline: Deadline, doing: str) -> LockAnswer:
        """Run a query of ``campaign_sql``; the lock is not held when a name collides.

        Raises:
            KeyCollisionError: another name uses our keys.
            PoolerError: the server session is shared with somebody else.
        """
        *_, first, last = [[], *await self.ask(query, deadline, doing)]
        granted, unshared, full, aside = (last if not self.options.fencing else first)[-1][:4]
        if not unshared:
            self.link.drop()
            raise PoolerError("transaction")
        record = self.record(last) if self.options.fencing else None
        try:
            self.refuse_collision(record.name if record else None)
        except KeyCollisionError:
            if granted:  # the row came between the two statements
                await self.ask(sql.unlock(self.options.key), deadline, "unlocking after a name collision")
            raise
        return LockAnswer(bool(granted), record, self.facts.backend, is_full=bool(full), aside=aside or 0)

    def refuse_collision(self, other: str | None) -> None:
        """Raise KeyCollisionError if another name uses our keys. No name collides with none."""
        key = self.options.key
        if other is not None and key.name is not None and other != key.name:
            raise KeyCollisionError(key, key.name, other)

    def record(self, last: Rows) -> LeaderRecord | None:
        """Read the token row of a result, if there is one."""
        return sql.record_of(last[0]) if last else None


async def results(conn: AsyncConnection[Any], query: Composable) -> list[Rows]:
    """Run a simple query; the rows of each of its statements that has columns."""
    # The cursor class is named: the connection may be one of the user's, with factories of its own.
    async with AsyncCursor(conn, row_factory=tuple_row) as cursor:
        await cursor.execute(query.as_string(conn).encode())
        found: list[Rows] = []
        while True:
            if cursor.description is not None:
                found.append(await cursor.fetchall())
            if not cursor.nextset():
                return found
