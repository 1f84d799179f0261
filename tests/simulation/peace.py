"""Peace after the trouble: somebody leads, and all others campaign. Then whoever leads is deposed, and has a successor.

How it is deposed is drawn from the seed. What the settings promise for that kind of end is said by `Limits`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgelect._engine.driver import CLOSE_WITHIN_S
from tests.simulation.checks import ViolationError
from tests.simulation.loop import TURN_S
from tests.simulation.progress import is_link_well

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect.testing._fake_cluster import FakeBackend
    from tests.simulation.process import Process
    from tests.simulation.progress import Kind
    from tests.simulation.simulation import Simulation

WATCHED_LEASES = 1.2
"""Nothing may change for so long."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """How the last leader was deposed, how long nobody led, and how long that might have been."""

    how: str
    took_s: float
    bound_s: float


def make_peace(sim: Simulation) -> Recovery:
    """Undo all faults, depose the leader, and see that the election is as it should be before and after."""
    sim.trace("nemesis", "peace")
    sim.nemesis.stop()
    sim.world.run(until=sim.world.now() + 10 * TURN_S)  # what was asked of a process last has begun
    sim.fill_up()
    _settle(sim, "the last fault")
    recovery = _depose(sim)
    sim.fill_up()
    _settle(sim, f"a leader was deposed by {recovery.how}")
    _watch(sim)
    _leave_a_place(sim)
    return recovery


def _settle(sim: Simulation, after: str) -> None:
    since, limit_s = sim.world.now(), sim.limits.settles_s
    if not sim.world.run(until=since + limit_s, stop=lambda: leader_of(sim) is not None):
        raise ViolationError(f"nobody leads {limit_s:.1f} s after {after}")
    if not sim.world.run(until=since + limit_s, stop=lambda: not _unsettled(sim, since)):
        raise ViolationError(f"{limit_s:.1f} s after {after}: {_unsettled(sim, since)}")
    sim.progress.needed("settled in peace", sim.world.now() - since, limit_s)


def _watch(sim: Simulation) -> None:
    leader, since = leader_of(sim), sim.world.now()
    number = leader.lock._runner.snapshot.number if leader is not None else 0
    sim.world.run(until=since + WATCHED_LEASES * sim.plan.lease_s)
    if (leads := leader_of(sim)) is None:
        raise ViolationError("nobody leads any more, in peace")
    if leads is not leader or leads.lock._runner.snapshot.number != number:
        raise ViolationError("the leader changed in peace")
    limit_s = sim.limits.campaigns_again_s + sim.limits.leaves_s
    if not sim.world.run(until=sim.world.now() + limit_s, stop=lambda: not _unsettled(sim, since)):
        raise ViolationError(f"in peace: {_unsettled(sim, since)}")


def _leave_a_place(sim: Simulation) -> None:
    """One of those who wait goes home, and nobody new comes: one of those aside takes its place."""
    waiting = sim.cluster.locks.waiters(sim.key)
    leaving = next((p for p in sim.processes if p.is_running and any(map(p.owns, waiting))), None)
    if leaving is None or not any(backend.aside == sim.key for backend in sim.cluster.backends.values()):
        return
    leaving.command("shutdown", leaving.shutdown())
    sim.trace("nemesis", f"{leaving} leaves its place")
    since, limit_s = sim.world.now(), sim.limits.looks_s + sim.limits.campaigns_again_s + CLOSE_WITHIN_S
    if not sim.world.run(until=since + limit_s, stop=lambda: leaving.has_stopped and not _unsettled(sim, since)):
        raise ViolationError(f"{limit_s:.1f} s after a place was left: {_unsettled(sim, since)}")
    sim.progress.needed("a place is taken", sim.world.now() - since, limit_s)


def leader_of(sim: Simulation) -> Process | None:
    """Who holds the lock and leads."""
    holder = sim.cluster.locks.holder(sim.key)
    if holder is None:
        return None
    for process in sim.processes:
        grant = process.lock._runner._machine.grant
        if grant is not None and grant.backend == holder.id and process.leads:
            return process
    return None


def _unsettled(sim: Simulation, since: float) -> str:  # noqa: PLR0911 -- one for each thing that may be wrong
    """Who neither leads nor campaigns, or what is wrong with the sessions on the server; empty when all is well."""
    leader = leader_of(sim)
    if leader is None:
        return "nobody leads"
    sessions = [backend for backend in sim.cluster.backends.values() if backend.lease_s is not None]
    running = [process for process in sim.processes if process.is_running]
    waiting = sim.cluster.locks.waiters(sim.key)
    aside = [backend for backend in sessions if backend.aside == sim.key]
    for process in running:
        own = [backend for backend in sessions if process.owns(backend)]
        if len(own) > 1:
            return f"{process} has {len(own)} sessions"
        if process is not leader and not (own and (own[0] in waiting or own[0] in aside or process.polled_at > since)):
            return f"{process} does not campaign"
        if not all(is_link_well(backend) for backend in own):  # it is still to hear that its session is over
            return f"{process} has a broken link"
    if len(sessions) != len(running):
        return f"{len(sessions)} sessions are on the server, for {len(running)} running processes"
    if len(waiting) > sim.plan.places or (aside and len(waiting) < sim.plan.places):
        return f"{len(waiting)} wait in {sim.plan.places} places, and {len(aside)} stand aside"
    return ""


# How a leader is deposed


def _depose(sim: Simulation) -> Recovery:
    leader, holder = leader_of(sim), sim.cluster.locks.holder(sim.key)
    if leader is None or holder is None:
        raise ViolationError("nobody leads any more, in peace")
    how, (kind, end) = sim.world.chance.choice(
        [way for way in _WAYS.items() if sim.plan.killable or way[0] not in _KEEP_A_TRANSACTION]
    )
    if how == "kill" and any(backend.aside == sim.key for backend in sim.cluster.backends.values()):
        how, kind, end = "killed with all who wait", "aside", _kill_all_who_wait
    sim.trace("nemesis", f"{leader} is deposed: {how}")
    end(sim, leader, holder)
    since, bound_s = sim.world.now(), sim.limits.failover_s(leader, kind)

    def is_succeeded() -> bool:
        return sim.cluster.locks.holder(sim.key) is not holder and leader_of(sim) is not None

    if not sim.world.run(until=since + bound_s, stop=is_succeeded):
        raise ViolationError(f"nobody leads {bound_s:.2f} s after the leader was deposed by {how} ({kind})")
    took_s = sim.world.now() - since
    sim.progress.needed(f"a successor, {kind} end", took_s, bound_s)
    leader.loop.wake()
    leader.network.unblock()
    return Recovery(how, took_s, bound_s)


def _terminate(sim: Simulation, _: Process, holder: FakeBackend) -> None:
    sim.server.terminate(holder.id.pid)


def _cut_off(sim: Simulation, _: Process, holder: FakeBackend) -> None:
    sim.server.cut_off(holder.id.pid)


def _kill(_: Simulation, leader: Process, __: FakeBackend) -> None:
    leader.kill(without_a_word=False)


def _kill_all_who_wait(sim: Simulation, leader: Process, _: FakeBackend) -> None:
    _kill(sim, leader, _)
    waiting = sim.cluster.locks.waiters(sim.key)
    for process in sim.processes:
        if any(process.owns(backend) for backend in waiting):
            process.kill(without_a_word=False)


def _power_failure(sim: Simulation, leader: Process, _: FakeBackend) -> None:
    leader.kill(without_a_word=True)
    for wire in leader.network.wires:
        sim.notice_later(wire)


def _pause(_: Simulation, leader: Process, __: FakeBackend) -> None:
    leader.loop.sleep()


def _partition(_: Simulation, leader: Process, __: FakeBackend) -> None:
    leader.network.block(up=True, down=True)


def _step_down(_: Simulation, leader: Process, __: FakeBackend) -> None:
    leader.command("step down", leader.step_down())


def _shut_down(_: Simulation, leader: Process, __: FakeBackend) -> None:
    leader.command("shutdown", leader.shutdown())


_WAYS: dict[str, tuple[Kind, Callable[[Simulation, Process, FakeBackend], None]]] = {
    "terminate": ("crash", _terminate),
    "cut off": ("crash", _cut_off),
    "kill": ("crash", _kill),
    "power failure": ("silent", _power_failure),
    "pause": ("silent", _pause),
    "partition": ("silent", _partition),
    "step down": ("clean", _step_down),
    "shutdown": ("clean", _shut_down),
}
_KEEP_A_TRANSACTION = {"pause", "partition"}
"""While they last, so may a transaction that the leader has fenced: where a mint may not end it, nobody can lead."""
