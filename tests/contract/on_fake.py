"""The election on the fake server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, get_args

from pgelect._engine.model import Grant, LockKey
from pgelect._engine.session import Session
from pgelect.testing import FakeServer
from pgelect.testing._fake_transactions import Isolation
from pgelect.testing.fake import FakeClient, FakeSerializationError, FakeSession
from tests.contract.client import Client, SerializationError
from tests.contract.election import METADATA, WITHIN_S, Election, End, Restart, Row, Way, soon

if TYPE_CHECKING:
    from pgelect.testing._fake_wire import Wire

SLICE_S = 0.5  # long enough that several waiters meet in the queue
FENCE_WAIT_S = 0.6
CLIENT_CHECK_S = 0.1
COMMIT_S = 0.2  # of a mint that is to be seen before it commits


class FakeElection(Election):
    """On a fake server."""

    def __init__(self, key: LockKey, server: FakeServer | None = None) -> None:
        super().__init__(key)
        self._commit_s = 0.0
        self.server = server or FakeServer(
            wait_slice_s=SLICE_S,
            fence_wait_s=FENCE_WAIT_S,
            client_check_s=CLIENT_CHECK_S,
            commit_s=lambda: self._commit_s,
        )
        self._weak = False
        self._wires: dict[Session, Wire] = {}

    async def weaken(self) -> None:
        self._weak = True
        self.server._cluster.may_terminate = False

    # Sessions and clients

    def new_session(self, key: LockKey, identity: str, lease_s: float, fencing: bool) -> Session:
        self.server._cluster.places = self.places
        return self.server.session(key=key, identity=identity, metadata=METADATA, lease_s=lease_s, fencing=fencing)

    def new_client(self) -> Client:
        return _Client(self.server.client(self.key, killable=not self._weak))

    async def terminate(self, pid: int) -> bool:
        return self.server.terminate(pid)

    async def cancel(self, pid: int) -> bool:
        return self.server.cancel(pid, hits_next=False)

    async def lock_again(self, session: Session) -> None:
        assert isinstance(session, FakeSession)
        assert session.pid is not None
        assert self.server._cluster.locks.try_lock(self.key, self.server._cluster.backends[session.pid])

    async def unlock_all(self, session: Session) -> None:
        assert isinstance(session, FakeSession)
        assert session.pid is not None
        self.server.unlock_all(session.pid)

    async def history(self) -> list[tuple[int, str | None, str | None]]:
        return [(term.token, term.ending, term.reason) for term in self.server.history(self.key)]

    async def request_step_down(self, token: int | None = None) -> int | None:
        return self.server.request_step_down(self.key, token)

    async def call(self) -> None:
        self.server.call(self.key)

    # Links

    async def linked(self, identity: str = "a", *, lease_s: float = 15.0) -> Session:
        wire = self.server.new_wire()
        session = self.server.session(
            key=self.key, identity=identity, metadata=METADATA, lease_s=lease_s, new_wire=lambda: wire
        )
        self._wires[session] = wire
        self.made.append(session)
        await session.open(WITHIN_S)
        return session

    async def cut(self, session: Session, end: End = "both") -> None:
        assert isinstance(session, FakeSession)
        assert session.pid is not None
        if end != "server":
            self.server.cut(session.pid)
        if end != "client":
            self.server.cut_off(session.pid)

    async def notice(self, session: Session) -> None:
        await self.cut(session, "server")

    async def silence(self, session: Session, way: Way = "both") -> None:
        wire = self._wires[session]
        for blocked in {"up": (wire.up,), "down": (wire.down,), "both": (wire.up, wire.down)}[way]:
            blocked.block()

    async def heal(self, session: Session) -> None:
        self._wires[session].unblock()

    # What there is to see

    async def holders(self) -> list[int]:
        return list(self.server.holders(self.key))

    async def waiters(self) -> list[int]:
        return list(self.server.waiters(self.key))

    async def aside(self) -> list[int]:
        return [pid for pid, one in self.server._cluster.backends.items() if one.aside == self.key]

    async def pids(self) -> list[int]:
        return list(self.server.sessions())

    async def row(self) -> Row | None:
        row = self.server.row(self.key)
        if row is None:
            return None
        released = row.released_at is not None
        metadata = dict(row.metadata)
        return Row(row.name, row.token, row.holder, metadata, row.terms, row.lease_s, released, row.backend.pid)

    async def ledger(self) -> list[tuple[int, int]]:
        return [(written.token, written.value) for written in self.server.ledger()]

    async def blocked(self, pid: int) -> bool:
        return self.server._cluster.backends[pid].wait is not None and pid not in await self.waiters()

    # The server

    @asynccontextmanager
    async def uncommitted_mint(self, session: Session) -> AsyncIterator["asyncio.Task[Grant]"]:
        async def written() -> bool:
            return self.server._tables.is_being_written(self.key)

        self._commit_s = COMMIT_S
        mint = asyncio.create_task(session.mint(WITHIN_S))
        await soon(written, "the mint has written its row")
        self._commit_s = 0.0
        yield mint

    async def restart(self, mode: Restart) -> None:
        self.server.restart(immediate=mode == "immediate")

    @asynccontextmanager
    async def standstill(self) -> AsyncIterator[None]:
        self.server.freeze()
        try:
            yield
        finally:
            self.server.thaw()


class _Client(Client):
    def __init__(self, client: FakeClient) -> None:
        self._client = client
        self._token = 0

    async def open(self) -> None:
        await self._client.open()
        assert self._client.pid is not None
        self.pid = self._client.pid

    async def begin(self, isolation: str = "read committed") -> None:
        self._token = 0
        (level,) = (level for level in get_args(Isolation) if level == isolation)
        await self._client.begin(level)

    async def check(self, token: int) -> None:
        try:
            await self._client.check(token)
        except FakeSerializationError as error:
            raise SerializationError(str(error)) from error
        self._token = token

    async def peek(self) -> int | None:
        seen = await self._client.peek()
        if seen is not None:
            self._token = seen
        return seen

    async def write(self, value: int) -> None:
        await self._client.write(value, self._token)

    async def commit(self) -> None:
        await self._client.commit()

    async def rollback(self) -> None:
        await self._client.rollback()

    async def close(self) -> None:
        await self._client.close()
