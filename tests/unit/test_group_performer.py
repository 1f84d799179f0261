"""How long each call on a group's session may take: what is not a proof leaves time for the next one."""

from dataclasses import replace

import pytest

from pgelect import FixedInterval, LockKey
from pgelect._engine.settings import Settings
from pgelect._group import events as ev
from pgelect._group.performer import Performer
from pgelect._group.session import Catch
from pgelect._group.state import Machine, Rules
from pgelect.testing.clock import FakeClock
from pgelect.testing.fake import FakeServer
from pgelect.testing.fake_group_session import FakeGroupSession

KEY = LockKey(3, 1)


@pytest.mark.parametrize(("left_s", "timeout_s"), [(14.0, 4.0), (9.0, 4.0), (14.0, 9.0)])
async def test_taking_and_freeing_leave_time_for_a_proof(
    left_s: float, timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[float] = []

    async def take(_: FakeGroupSession, __: tuple[LockKey, ...], within_s: float) -> Catch:
        allowed.append(within_s)
        return Catch()

    async def free(_: FakeGroupSession, __: tuple[tuple[LockKey, int], ...], within_s: float) -> None:
        allowed.append(within_s)

    monkeypatch.setattr(FakeGroupSession, "take", take)
    monkeypatch.setattr(FakeGroupSession, "free", free)
    clock = FakeClock()
    settings = Settings(key=KEY, identity="one", health_interval_s=4.0, health_timeout_s=timeout_s)
    server = FakeServer(clock=clock)
    performer = Performer(settings, lambda: server.group_session(group=KEY), FixedInterval(1.0), clock)
    performer.prepare(1)
    machine = replace(Machine(Rules(settings.trust_s, 5.0, 0.9, 5.0, 0.0, 10.0)), trusted_until=clock.now() + left_s)
    await performer.perform(ev.Take((KEY,)), 1, machine)
    await performer.perform(ev.Free(((KEY, 1),)), 1, machine)
    reserve_s = min(timeout_s, settings.trust_s / 3)
    assert allowed == [max(min(timeout_s, left_s), left_s - reserve_s)] * 2
    assert max(allowed) < left_s
