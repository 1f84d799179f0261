"""The words that labels may have. Whatever is not among them is counted as ``other``, so that labels stay bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgelect._engine.model import LockState

if TYPE_CHECKING:
    from collections.abc import Mapping

OTHER = "other"

SESSION_LOST = ("closed", "timeout", "disproved", "expired")
"""How the session of a term is lost."""

ERRORS = frozenset({
    *SESSION_LOST, "connect", "fence_busy", "not_primary", "lock", "pooler", "schema", "key_collision",
    "unsupported_server", "configuration", "connection", "session_lost", "stale_token", "not_leader", "forked",
    "shutdown", "pg_elect", "unexpected",
})  # fmt: skip
"""Words for errors: how a session was lost, or the kind of error."""

EVENTS = frozenset({
    "start", "reconfigure", "opened", "announced", "tick", "lock_refused", "lock_granted", "minted", "proved",
    "proof_failed", "watch_ended", "heeded", "step_down_requested", "failed", "step_down", "shutdown", "abort",
    "resumed", "resume_refused", "drained", "unlocked",
})  # fmt: skip
"""Words for what happens to a lock without an error."""

CAUSES = ERRORS | EVENTS
ATTEMPT_CAUSES = ERRORS | {"held"}
CALLBACKS = ("acquired", "released", "lost", "acquire_failed", "state_change", "error")
FENCE_OUTCOMES = ("ok", "stale", "failed")

_GAVE_UP = ("step_down", "step_down_requested", "shutdown")
ENDINGS = tuple([("released", cause) for cause in _GAVE_UP] + [("lost", cause) for cause in SESSION_LOST])

_S = LockState
USUAL: Mapping[tuple[LockState, LockState], tuple[str, ...]] = {
    (_S.STOPPED, _S.FOLLOWER): ("start",),
    (_S.FOLLOWER, _S.ACQUIRING): ("opened", "announced", "lock_granted", "tick"),
    (_S.FOLLOWER, _S.STOPPED): ("shutdown",),
    (_S.ACQUIRING, _S.LEADER): ("minted", "tick"),
    (_S.ACQUIRING, _S.FOLLOWER): ("lock_refused", "connect", "closed", "timeout"),
    (_S.ACQUIRING, _S.STOPPED): ("shutdown",),
    (_S.LEADER, _S.RELEASING): _GAVE_UP,
    (_S.LEADER, _S.RECONNECTING): SESSION_LOST,
    (_S.LEADER, _S.FOLLOWER): SESSION_LOST,
    (_S.LEADER, _S.STOPPED): ("abort",),
    (_S.RECONNECTING, _S.LEADER): ("resumed",),
    (_S.RECONNECTING, _S.FOLLOWER): ("expired", "disproved", "closed"),
    (_S.RECONNECTING, _S.STOPPED): ("closed", "expired"),
    (_S.RELEASING, _S.FOLLOWER): ("unlocked",),
    (_S.RELEASING, _S.STOPPED): ("unlocked",),
}
"""Every change of state that the machine has a rule for, with its usual reasons: their series exist from the start."""


def bounded(word: str, known: frozenset[str] | tuple[str, ...]) -> str:
    """Return the word if it is known, ``other`` if not."""
    return word if word in known else OTHER
