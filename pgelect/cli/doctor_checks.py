"""The doctor's list of checks: which looks at what. A check that fails, or could not look, does not end the others."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

from pgelect.cli.doctor_checks_locks import check_fenced, check_keys, check_room
from pgelect.cli.doctor_checks_schema import check_advisory, check_rights, check_schema
from pgelect.cli.doctor_checks_server import (
    check_keepalives,
    check_pooler,
    check_server,
    check_settings,
    check_standbys,
)
from pgelect.cli.doctor_checks_timing import check_clock, check_latency, check_promises
from pgelect.cli.doctor_facts import Finding, Severity, Unseen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pgelect.cli.doctor_facts import Facts, Seen

    T = TypeVar("T")

_ORDER = tuple(Severity)
_UNFENCED = Finding(
    Severity.NOTE, "rights", "without fencing no schema is needed, no token protects writes, and nobody sees who leads"
)


class UnseenError(Exception):
    """What a check is about could not be looked at; the text says why.

    Attributes:
        lost: the session had ended, which is told once for all checks.
    """

    def __init__(self, unseen: Unseen) -> None:
        self.lost = unseen.lost
        super().__init__(unseen.why)


def findings(facts: Facts) -> list[Finding]:
    """Judge all that was seen."""
    server, settings = facts.server, facts.settings
    ours, fencing = server.refused is None, settings.fencing
    checks: tuple[tuple[str, Callable[[], Iterable[Finding]]], ...] = (
        ("server", lambda: check_server(server)),
        ("pooler", lambda: check_pooler(server)),
        ("locking", lambda: check_advisory(_seen(facts.rights), server)),
        ("rights", lambda: check_rights(_seen(facts.rights), server) if fencing else [_UNFENCED]),
        ("schema", lambda: check_schema(_seen(facts.rights), facts.version) if fencing else ()),
        ("keys", lambda: check_keys(facts.key, _seen(facts.tokens), _seen(facts.locks))),
        ("transactions", lambda: check_fenced(_seen(facts.fenced))),
        ("settings", lambda: check_settings(_seen(facts.options), settings.lease_s, ours=ours)),
        ("standbys", lambda: check_standbys(_seen(facts.replication))),
        ("connections", lambda: check_room(_seen(facts.room))),
        ("keepalives", lambda: check_keepalives(server, settings.lease_s)),
        ("latency", lambda: check_latency(_seen(facts.timing), settings)),
        ("clock", lambda: check_clock(_seen(facts.timing), settings)),
        ("promise", lambda: check_promises(facts.bounds)),
    )
    found = [finding for name, check in checks for finding in _checked(name, check)]
    seen = (getattr(facts, item.name) for item in fields(facts))
    lost = [what.why for what in seen if isinstance(what, Unseen) and what.lost]
    return [*found, _lost(lost[0])] if lost else found


def _lost(why: str) -> Finding:
    return Finding(
        Severity.ERROR,
        "session",
        f"it was lost during the examination, which is therefore not complete: {why}",
        "A lock would have lost its session, too. Look at the network and the server's log, and ask the doctor again.",
    )


def worst(found: Iterable[Finding]) -> Severity:
    """Give the gravest severity; OK when there is nothing."""
    return max((finding.severity for finding in found), key=_ORDER.index, default=Severity.OK)


def _seen(what: Seen[T]) -> T:
    if isinstance(what, Unseen):
        raise UnseenError(what)
    return what


def _checked(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except UnseenError as error:
        if error.lost:
            return []
        return [Finding(Severity.WARNING, name, f"could not be looked at: {error}")]
    except Exception as error:  # noqa: BLE001 -- a server we do not know; what else was seen is told all the same
        return [Finding(Severity.WARNING, name, f"could not be judged: {type(error).__name__}: {error}")]
