"""The nemesis: which fault comes when. A seed decides; every kind has its turn before any comes again."""

from __future__ import annotations

import threading
import time
from random import Random
from typing import TYPE_CHECKING

import psycopg

from benchmarks.chaos import plan
from benchmarks.chaos.faults import ASIDE, KINDS, MAIN
from benchmarks.chaos.stage import ThwartedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.chaos.stage import Leader, Stage

_ASIDE_EVERY = 5  # faults
_TRIES = 3


def schedule(seed: int) -> tuple[Iterator[str], Iterator[str]]:
    """Give the faults that come one after the other, and those that go on beside them."""
    return rounds(tuple(MAIN), Random(f"{seed} main")), rounds(tuple(ASIDE), Random(f"{seed} aside"))


def rounds(kinds: tuple[str, ...], rng: Random) -> Iterator[str]:
    """Give the kinds in a random order, for ever, each once a round."""
    while True:
        yield from rng.sample(kinds, len(kinds))


class Nemesis:
    """Breaks things for a while."""

    def __init__(self, stage: Stage, seed: int, progress: Callable[[str], None]) -> None:
        self._stage = stage
        self._progress = progress
        self._main, self._aside = schedule(seed)
        self._beside: threading.Thread | None = None

    def run(self, for_s: float) -> None:
        """Do one fault after the other; what is begun is brought to its end, and so is a full run's first round.

        Of a full run, a kind that was thwarted whenever it had its turn is tried again in the end.
        """
        end = time.monotonic() + for_s
        number = 0
        try:
            while time.monotonic() < end or (for_s >= plan.FULL_S and number < len(MAIN)):
                self._stage.a_moment(0.2, 1.0)
                leader = self._stage.leader()
                if number % _ASIDE_EVERY == 1:
                    self._begin_aside(leader)
                self._deed(next(self._main), leader)
                number += 1
            self._join()
            if for_s >= plan.FULL_S:
                for kind in KINDS:
                    self._make_up_for(kind)
        finally:
            self._join()

    def _make_up_for(self, kind: str) -> None:
        for _ in range(_TRIES):
            if self._stage.happened[kind]:
                return
            self._stage.a_moment(0.2, 1.0)
            self._deed(kind, self._stage.leader())

    def _deed(self, kind: str, leader: Leader) -> None:
        self._progress(f"  {kind}")
        deed = MAIN.get(kind) or ASIDE[kind]
        try:
            deed(self._stage, leader)
        except (psycopg.Error, ThwartedError) as error:  # another fault was in its way; the book says how often
            self._stage.book.write("thwarted", kind=kind, error=" ".join(str(error).split())[:200])

    def _begin_aside(self, leader: Leader) -> None:
        self._join()
        kind = next(self._aside)
        self._beside = threading.Thread(target=self._deed, args=(kind, leader), name=kind)
        self._beside.start()

    def _join(self) -> None:
        if self._beside is not None:
            self._beside.join()
            self._beside = None
