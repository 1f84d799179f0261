"""Everybody goes home: all processes stop in an orderly way, and nothing is left of anybody, here or on the server.

Those that stopped during the trouble are looked at as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgelect import LockState
from pgelect._engine.driver import CLOSE_WITHIN_S
from tests.simulation.checks import ViolationError
from tests.simulation.network import MESSAGE_S

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.simulation import Simulation

STOPS_WITHIN_S = 30.0


def go_home(sim: Simulation) -> None:
    """Stop all that run, and look what is left."""
    sim.trace("world", "everybody goes home")
    for process in sim.processes:
        if process.is_running:
            process.command("shutdown", process.shutdown())
    at_home = sim.world.run(
        until=sim.world.now() + STOPS_WITHIN_S,
        stop=lambda: all(process.has_stopped for process in sim.processes if process.alive),
    )
    if not at_home:
        raise ViolationError("a shutdown does not end")
    sim.world.run(until=sim.world.now() + CLOSE_WITHIN_S + MESSAGE_S)
    _check_server(sim)
    sim.world.run(until=sim.world.now() + 3 * sim.plan.lease_s)  # a callback may still run
    for process in (*sim.processes, *sim.dead):
        if process.has_stopped:
            _check_process(process)
    _check_server(sim)
    _check_ledger(sim)


def _check_process(process: Process) -> None:
    if process.loop.tasks:
        raise ViolationError(f"{process}: tasks are left: {process.loop.tasks}")
    if process.told and process.told[-1][0] == "acquired":
        raise ViolationError(f"{process}: term {process.told[-1][1]} was never ended")
    if process.lock._runner._performer._sessions:
        raise ViolationError(f"{process}: sessions are left")
    if process.lock.state is not LockState.STOPPED or process.lock.is_leader or process.lock.term is not None:
        raise ViolationError(f"{process} has stopped, but says that it is {process.lock.state}")


def _check_server(sim: Simulation) -> None:
    server = sim.server
    left = {
        "sessions": server.sessions(),
        "holders": server.holders(sim.key),
        "waiters": server.waiters(sim.key),
        "fenced transactions": tuple(transaction.pid for transaction in server._tables.fenced()),
    }
    for what, found in left.items():
        if found:
            raise ViolationError(f"{what} are left on the server: {found}")


def _check_ledger(sim: Simulation) -> None:
    there = {written.value for written in sim.server.ledger()} | sim.checks.lost_values
    for process in (*sim.processes, *sim.dead):
        if process.writer is not None and (missing := set(process.writer.acknowledged) - there):
            raise ViolationError(f"{process}: acknowledged writes are not there: {sorted(missing)}")
