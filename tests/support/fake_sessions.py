"""Sessions with a fake server, for tests of what it does itself."""

import pytest

from pgelect._engine.model import Grant, LockKey
from pgelect._engine.session import Session
from pgelect.errors import SessionLostError
from pgelect.testing.fake import FakeServer, FakeSession

KEY = LockKey(1, 2, "jobs")
WITHIN_S = 5.0
SOON_S = 0.05  # for calls that are expected to time out


async def opened(server: FakeServer, identity: str = "a", lease_s: float = 15.0) -> FakeSession:
    session = server.session(key=KEY, identity=identity, lease_s=lease_s)
    await session.open(WITHIN_S)
    return session


async def leading(server: FakeServer, identity: str = "a", lease_s: float = 15.0) -> tuple[FakeSession, Grant]:
    session = await opened(server, identity, lease_s)
    assert (await session.try_lock(None, WITHIN_S)).granted
    return session, await session.mint(WITHIN_S)


async def lost(session: Session, reason: str, within_s: float = WITHIN_S) -> None:
    with pytest.raises(SessionLostError) as caught:
        await session.prove(within_s)
    assert caught.value.reason == reason
