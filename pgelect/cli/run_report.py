"""What ``pgelect run`` tells while it runs: one line a transition, for people or as JSON.

Without a command it is said on standard output. With one, that belongs to the command, and it is said on standard
error. Errors that it lives through are told there, too, and a repeated one only once a minute.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from pgelect import LockState
from pgelect.cli.ending import describe
from pgelect.cli.output import as_json, clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pgelect import LeaderLock, Term

_AGAIN_S = 60.0
_NOTHING: Mapping[str, object] = MappingProxyType({})
_TOLD_OTHERWISE = {LockState.ACQUIRING, LockState.LEADER}
_WORDS = {
    LockState.FOLLOWER: "waiting for leadership",
    LockState.RECONNECTING: "not leading: the session is lost, and a new one tries to go on with the same term",
    LockState.RELEASING: "giving up leadership",
    LockState.STOPPED: "no longer campaigning",
}


class Report:
    """Listens to a lock, and prints."""

    def __init__(self, lock: LeaderLock, *, aside: bool, as_json: bool, on_nobody: Callable[[], None]) -> None:
        """Register with the lock.

        Args:
            lock: not started yet.
            aside: on standard error.
            as_json: one object a line.
            on_nobody: called when nobody reads standard output any more.
        """
        self._lock = lock
        self._aside = aside
        self._as_json = as_json
        self._on_nobody = on_nobody
        self._last_error = ""
        self._last_error_at = 0.0
        lock.on_state_change(self._changed)
        lock.on_acquired(lambda term: self._term("acquired", term, "leader"))
        lock.on_released(lambda term: self._term("released", term, "released"))
        lock.on_lost(lambda term: self._term("lost", term, "lost"))
        lock.on_error(self.error)

    def error(self, error: Exception) -> None:
        """Tell of an error that the lock lives through."""
        text, now = describe(error), time.monotonic()
        if text == self._last_error and now - self._last_error_at < _AGAIN_S:
            return
        self._last_error, self._last_error_at = text, now
        self.tell("error", text, {"error": text}, aside=True)

    def tell(self, event: str, words: str, data: Mapping[str, object] = _NOTHING, *, aside: bool = False) -> None:
        """Print one line: the event and its data as JSON, or the words."""
        at = datetime.now(UTC)
        if self._as_json:
            line = json.dumps({"event": event, "at": as_json(at), **data}, ensure_ascii=False)
        else:
            line = f"{at.isoformat(timespec='milliseconds').replace('+00:00', 'Z')} {words}"
        if self._aside or (aside and not self._as_json):
            with suppress(OSError):  # nobody listens; the command's work is not about that
                print(line, file=sys.stderr, flush=True)
            return
        try:
            print(line, flush=True)
        except OSError:
            self._on_nobody()

    def _changed(self, old: LockState, new: LockState) -> None:
        if self._as_json:
            self.tell("state", "", {"from": old.value, "to": new.value})
        elif new not in _TOLD_OTHERWISE and not (old is LockState.ACQUIRING and new is LockState.FOLLOWER):
            self.tell("state", f"{new.value}: {_WORDS[new]}{self._by_whom(new)}")

    def _term(self, event: str, term: Term, word: str) -> None:
        self._last_error = ""
        self.tell(event, f"{word}: token {term.token}" if term.token else word, as_json(term))

    def _by_whom(self, state: LockState) -> str:
        record = self._lock.record
        if state is not LockState.FOLLOWER or record is None or record.holder == self._lock.identity:
            return ""
        return f"; the last to lead was {clean(record.holder)} with token {record.token}"
