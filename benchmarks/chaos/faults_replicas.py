"""What replicas and their links suffer: one function a kind of fault.

Each is given the present leader, breaks something, lets others take over while it is broken, and mends it again. The
times and the sessions that it ended are written down; what may follow from them is the checker's business.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.chaos.book import now
from benchmarks.chaos.peace import queued_for_the_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from benchmarks.chaos.stage import Leader, Stage
    from tests.support.proxy import Direction

    Deed: TypeAlias = Callable[[Stage, Leader], None]

# -- processes ---------------------------------------------------------------------------------------------------------


def kill(stage: Stage, leader: Leader) -> None:
    """SIGKILL of the leader, now and then of a follower, too, or of all who wait; new processes take their places."""
    victims = [stage.troop.of(leader.process)]
    followers = stage.followers(leader)
    match stage.rng.choice(("alone", "alone", "one", "all")):
        case "one":
            victims.append(stage.rng.choice(followers))
        case "all":
            queued = queued_for_the_lock(stage)
            victims += [replica for replica in followers if replica.process.name in queued]
    names = [replica.process.name for replica in victims]
    with stage.fault("kill", leader, *names):
        for replica in victims:
            replica.kill(stage.book)
    stage.until_led_anew(leader)
    for replica in victims:
        replica.start()
    for replica in victims:
        replica.started()


def stop_long(stage: Stage, leader: Leader) -> None:
    """SIGSTOP of the leader until another leads, and a little longer."""
    with (
        stage.fault("stop", leader, leader.process) as fault,
        stage.stopped(stage.troop.of(leader.process), fault),
    ):
        stage.until_led_anew(leader)
        stage.a_moment(0.0, 0.7)


def stop_short(stage: Stage, leader: Leader) -> None:
    """SIGSTOP of the leader for less than its lease, or for about as long: it may or may not lead on."""
    with (
        stage.fault("stop-short", leader, leader.process) as fault,
        stage.stopped(stage.troop.of(leader.process), fault),
    ):
        stage.a_moment(0.3, 3.0)


def stop_and_terminate(stage: Stage, leader: Leader) -> None:
    """Stop the leader, and end its session: it goes on before its lease is over, but after another has begun."""
    with (
        stage.fault("stop+terminate", leader, leader.process) as fault,
        stage.stopped(stage.troop.of(leader.process), fault),
    ):
        with fault.ending(leader.process):
            stage.terminate([leader.pid])
        stage.until_led_anew(leader)
        stage.a_moment(0.0, 0.3)


def graceful(stage: Stage, leader: Leader) -> None:
    """Stop the leader's process as a deployment does; a new one takes its place."""
    replica = stage.troop.of(leader.process)
    with stage.fault("shutdown", leader, leader.process):
        replica.end(stage.book)
    stage.until_led_anew(leader)
    replica.start()
    replica.started()


def step_down(stage: Stage, leader: Leader) -> None:
    """Have the leader step down."""
    with stage.fault("step-down", leader, leader.process):
        stage.troop.of(leader.process).process.tell("step_down")
        stage.until_led_anew(leader)


# -- links -------------------------------------------------------------------------------------------------------------


def freeze(direction: Direction) -> Deed:
    """Freeze the leader's links until another leads, and a little longer."""

    def deed(stage: Stage, leader: Leader) -> None:
        election_only = stage.rng.random() < 0.5
        with (
            stage.fault(f"freeze-{direction}", leader, leader.process) as fault,
            stage.frozen(stage.troop.of(leader.process), fault, direction, election_only=election_only),
        ):
            fault.notes["election_only"] = election_only
            stage.until_led_anew(leader)
            stage.a_moment(0.0, 0.7)

    return deed


def freeze_slow(stage: Stage, leader: Leader) -> None:
    """Delay the answers to the leader for a while, then freeze its links: its trust must count from its questions."""
    replica = stage.troop.of(leader.process)
    with stage.fault("freeze-slow", leader, leader.process) as fault:
        replica.links.delay_answers(stage.rng.uniform(0.3, 0.6))
        stage.a_moment(1.0, 2.0)
        with stage.frozen(replica, fault, "both"):
            stage.until_led_anew(leader)
            stage.a_moment(0.0, 0.7)


def partition(stage: Stage, leader: Leader) -> None:
    """Freeze the links of the leader and of a follower, which may be the next in the queue."""
    other = stage.rng.choice(stage.followers(leader))
    with stage.fault("partition", leader, leader.process, other.process.name) as fault, ExitStack() as frozen:
        for replica in (stage.troop.of(leader.process), other):
            frozen.enter_context(stage.frozen(replica, fault, "both"))
        stage.until_led_anew(leader)
        stage.a_moment(0.0, 0.7)


def cut_both(stage: Stage, leader: Leader) -> None:
    """Reset the leader's connections at both ends."""
    with stage.fault("cut", leader, leader.process) as fault:
        with fault.ending(leader.process):
            stage.troop.of(leader.process).links.cut(("election", "writer"))
        stage.until_led_anew(leader)


def cut_client(stage: Stage, leader: Leader) -> None:
    """Reset the leader's end only: the server keeps a ghost of its session."""
    with stage.fault("cut-client", leader, leader.process):
        stage.troop.of(leader.process).links.cut_end(("election", "writer"), "client")
        stage.until_led_anew(leader)


def cut_server(stage: Stage, leader: Leader) -> None:
    """Reset the server's end only: the leader hears nothing of it, and its writer is not touched."""
    replica = stage.troop.of(leader.process)
    with stage.fault("cut-server", leader, leader.process) as fault:
        begin = now()
        with fault.ending(leader.process):
            replica.links.cut_end(("election",), "server")
        fault.deaf.append((leader.process, begin, begin + replica.character.lease_s))
        stage.until_led_anew(leader)
        stage.a_moment(0.5, 1.0)


def deaf(stage: Stage, leader: Leader) -> None:
    """End the leader's session while its election link is frozen, and its writer's is not: only the fence is left."""
    direction: Direction = stage.rng.choice(("both", "down"))
    with (
        stage.fault("deaf", leader, leader.process) as fault,
        stage.frozen(stage.troop.of(leader.process), fault, direction, election_only=True),
    ):
        with fault.ending(leader.process):
            stage.terminate([leader.pid])
        stage.until_led_anew(leader)
        stage.a_moment(0.5, 1.5)
