"""One match: two candidates, of which one leads; one fault; and what the two then believe, and when.

All times are taken from what the processes report. The fault comes at a random moment of what the candidates do by
themselves, and no two faults come at the same time.
"""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.peers.beliefs import Change, Length, believes, changes, first, overlap
from benchmarks.process import STARTS_WITHIN_S, Child, DidNotHappenError
from tests.support.proxy import BreakableProxy

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from benchmarks.peers.elector import Scenario, Settings, System
    from benchmarks.peers.nursery import Nursery
    from benchmarks.peers.stores import Store

_STEP_S = 0.02
_SETTLED_S = 0.3
"""For so long one of the two has led, and the other has had time to begin to wait."""
_ALONE_S = 0.1
"""For so long after a fault there is no other, unless somebody leads before."""
_QUIET_S = (0.5, 3.0)
"""Two that do not both lead for a cycle, within these bounds, are taken to have sorted it out."""


class InterruptedMatchError(Exception):
    """The benchmark is being ended."""


@dataclass(frozen=True, slots=True)
class Arena:
    """What matches share."""

    nurseries: Mapping[str, Nursery]
    stores: Mapping[str, Store]
    longest_s: float
    fault: threading.Lock
    ending: threading.Event

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        if self.ending.wait(seconds):
            raise InterruptedMatchError


@dataclass(frozen=True, slots=True)
class Match:
    """What is to be played."""

    system: System
    settings: Settings
    scenario: Scenario
    number: int
    round: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of it.

    Attributes:
        takeover: from the fault until somebody leads anew; None where the leader kept the lead.
        overlap: for how long both believed that they lead, while both ran.
        heard: from the fault until the old leader did not believe any more.
        by_itself: it was the old leader that led anew.
        reason: why there is nothing, where there is nothing.
    """

    takeover: Length | None = None
    overlap: Length | None = None
    heard: Length | None = None
    by_itself: bool = False
    reason: str = ""


class _Pair:
    """The two, once one of them leads."""

    def __init__(self, arena: Arena, match: Match, all_of_it: ExitStack) -> None:
        self._arena = arena
        self._match = match
        self._all = all_of_it
        self._proxies: dict[str, BreakableProxy] = {}
        self.window_s = min(match.settings.window_s, arena.longest_s)
        one = self._start("a")
        self._within_a_cycle()  # or the two would poll at the same time, as they had been started
        two = self._start("b")
        self.leader, self.other = self._settled(one, two)
        self.old_since = 0.0

    def fault(self, inflict: Callable[[], float]) -> float:
        """Have it happen, at a moment when no other fault does; return when it did."""
        with self._arena.fault:
            at = inflict()
            deadline = at + _ALONE_S
            while time.monotonic() < deadline and first(self.others(), at, leads=True) is None:
                self._arena.sleep(0.005)
        return at

    def pause(self, seconds: float) -> None:
        """Let time pass."""
        self._arena.sleep(seconds)

    def freeze(self) -> float:
        """Freeze the link of the leader; return the time just before."""
        at = time.monotonic()
        self._proxies[self.leader.name].freeze()
        return at

    def end_sessions(self) -> float:
        """Have the server end the sessions of the leader; return the time just before."""
        return self._arena.stores[self._match.system.store].end_sessions(self.leader.name)

    def olds(self) -> list[Change]:
        """Return what the old leader has believed."""
        return _changes(self.leader, self.old_since)

    def others(self) -> list[Change]:
        """Return what the other has believed."""
        return _changes(self.other)

    def until(self, begun: Callable[[], float | None]) -> float | None:
        """Return the time that ``begun`` finds within the window."""
        deadline = time.monotonic() + self.window_s
        while (at := begun()) is None and time.monotonic() < deadline:
            self._arena.sleep(_STEP_S)
        if at is None:
            _check_that_it_runs(self.other)
        return at

    def overlap(self, since: float) -> tuple[Length, float]:
        """Watch until the two have sorted it out or the window is over; return the overlap, and when watching ended."""
        quiet_s = min(max(self._match.settings.cycle_s, _QUIET_S[0]), _QUIET_S[1], self.window_s)
        begun = last = time.monotonic()
        while True:
            now = time.monotonic()
            if believes(self.olds(), now) and believes(self.others(), now):
                last = now
            if now - last >= quiet_s or now - begun >= self.window_s:
                return overlap(self.olds(), self.others(), since, now), now
            self._arena.sleep(_STEP_S)

    def _start(self, which: str) -> Child:
        system, settings = self._match.system, self._match.settings
        store = self._arena.stores[system.store]
        election = f"e{self._match.number}"
        name = f"{election}{which}"
        port = store.port
        if self._match.scenario == "frozen":
            proxy = self._all.enter_context(BreakableProxy("127.0.0.1", store.port))
            self._proxies[name], port = proxy, proxy.port
        arguments = [system.name, settings.name, store.url(name, port), election, name]
        child = self._all.enter_context(Child(name, arguments, self._arena.nurseries[system.module].spawn))
        child.wait_for("ready", within_s=STARTS_WITHIN_S)
        return child

    def _settled(self, one: Child, two: Child) -> tuple[Child, Child]:
        """Return the one that leads and the other, at the moment of the fault, with both being watched."""
        deadline = time.monotonic() + self.window_s + STARTS_WITHIN_S
        while time.monotonic() < deadline:
            _check_that_it_runs(one, two)
            if (led := self._only_leader(one, two)) is None:
                self._arena.sleep(_STEP_S)
                continue
            self._arena.sleep(_SETTLED_S)
            if self._only_leader(one, two) is not led:
                continue
            self._within_a_cycle()
            for each in (one, two):
                each.tell("watch")
            self._arena.sleep(0.05)
            if self._only_leader(one, two) is led:
                return (one, two) if led is one else (two, one)
        raise DidNotHappenError(f"{one.name}, {two.name}: there was no time at which one of the two led")

    def _within_a_cycle(self) -> None:
        self._arena.sleep(random.uniform(0.0, min(self._match.settings.cycle_s, self.window_s)))

    @staticmethod
    def _only_leader(one: Child, two: Child) -> Child | None:
        now = time.monotonic()
        led = [each for each in (one, two) if believes(_changes(each), now)]
        return led[0] if len(led) == 1 else None


def play(arena: Arena, match: Match) -> Seen:
    """Play it; return what came of it."""
    if match.scenario in match.system.cannot:
        return Seen(reason=match.system.cannot[match.scenario])
    try:
        with ExitStack() as all_of_it:
            return _SCENARIOS[match.scenario](_Pair(arena, match, all_of_it), match)
    except DidNotHappenError as error:
        return Seen(reason=f"did not happen: {error}")


def _crash(pair: _Pair, match: Match) -> Seen:  # noqa: ARG001 -- as the others
    at = pair.fault(lambda: pair.leader.signal(signal.SIGKILL))
    return Seen(takeover=_since(at, pair.until(lambda: first(pair.others(), at, leads=True)), pair.window_s))


def _step_down(pair: _Pair, match: Match) -> Seen:  # noqa: ARG001 -- as the others
    def resign() -> float:
        pair.leader.tell("resign")
        return float(pair.leader.wait_for("resigning")["at"])

    at = pair.fault(resign)
    return Seen(takeover=_since(at, pair.until(lambda: first(pair.others(), at, leads=True)), pair.window_s))


def _stopped(pair: _Pair, match: Match) -> Seen:
    """Stop it until another leads, and a little longer; what it believed meanwhile, it did not act on."""
    at = pair.fault(lambda: pair.leader.signal(signal.SIGSTOP))
    led_at = pair.until(lambda: first(pair.others(), at, leads=True))
    pair.pause(random.uniform(0.0, min(match.settings.cycle_s, 0.5)))
    continued = pair.leader.signal(signal.SIGCONT)
    pair.old_since = pair.leader.wait_for("look", at_least=continued)["at"]
    both, _ = pair.overlap(pair.old_since)
    return Seen(takeover=_since(at, led_at, pair.window_s), overlap=both)


def _frozen(pair: _Pair, match: Match) -> Seen:  # noqa: ARG001 -- as the others
    at = pair.fault(pair.freeze)
    led_at = pair.until(lambda: first(pair.others(), at, leads=True))
    both, _ = pair.overlap(at)
    return Seen(takeover=_since(at, led_at, pair.window_s), overlap=both)


def _terminated(pair: _Pair, match: Match) -> Seen:
    """End its sessions; it may then lead anew itself, or never have ceased to."""
    at = pair.fault(pair.end_sessions)

    def anew() -> float | None:
        return first(pair.others(), at, leads=True) or first(pair.olds(), at, leads=True)

    led_at = pair.until(anew)
    takeover = _since(at, led_at, pair.window_s)
    if match.system.is_floor:
        return Seen(takeover=takeover)
    both, watched_until = pair.overlap(at)
    heard_at = first(pair.olds(), at, leads=False)
    if led_at is None and heard_at is None:
        return Seen(overlap=both)
    by_itself = first(pair.others(), at, leads=True) != led_at
    return Seen(takeover, both, _since(at, heard_at, watched_until - at), by_itself=by_itself and led_at is not None)


_SCENARIOS: dict[Scenario, Callable[[_Pair, Match], Seen]] = {
    "crash": _crash,
    "step-down": _step_down,
    "stopped": _stopped,
    "frozen": _frozen,
    "terminated": _terminated,
}


def _since(fault_at: float, at: float | None, watched_s: float) -> Length:
    return Length(watched_s, over=False) if at is None else Length(at - fault_at)


def _check_that_it_runs(*children: Child) -> None:
    for child in children:
        if child.has_ended:
            raise DidNotHappenError(f"{child.name} ended by itself: {child.last_words()}")


def _changes(child: Child, since: float = 0.0) -> list[Change]:
    return changes([event for kind in ("acquired", "lost", "look") for event in child.events(kind)], since)
