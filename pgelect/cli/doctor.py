"""``pgelect doctor``: connects as a lock would, and says what would hurt it and what to do about it.

Exit codes: 0 all is well, or there are only notes; 1 warnings; 3 the server cannot be reached; 4 errors.
"""

import os
from dataclasses import dataclass, fields
from enum import StrEnum
from math import inf
from typing import Annotated, Any

import typer

from pgelect._engine.model import LockKey
from pgelect._engine.settings import Settings, default_identity
from pgelect.cli.ending import Code, perform, told
from pgelect.cli.options import AsJson, DsnOfALock, Key1, Key2, Name, lock_key_or_all, seconds


class Acquire(StrEnum):
    """How followers wait."""

    QUEUE = "queue"
    POLL = "poll"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be judged: the settings as a lock would have them, and where it would connect to."""

    key: LockKey | None
    settings: Settings
    poll_max_s: float | None
    dsn: str
    allow_pooler: bool


def doctor(
    name: Name = None,
    key1: Key1 = None,
    key2: Key2 = None,
    *,
    dsn: DsnOfALock = None,
    lease: Annotated[float | None, seconds("--lease", "lease_s of your locks. [15]")] = None,
    health_interval: Annotated[float | None, seconds("--health-interval", "health_interval_s. [5]")] = None,
    health_timeout: Annotated[
        float | None, seconds("--health-timeout", "health_timeout_s. [what the lease allows]")
    ] = None,
    reconnect_grace: Annotated[float | None, seconds("--reconnect-grace", "reconnect_grace_s. [0]")] = None,
    takeover_delay: Annotated[float | None, seconds("--takeover-delay", "takeover_delay_s. [0]")] = None,
    drain: Annotated[float | None, seconds("--drain", "drain_timeout_s. [10]")] = None,
    acquire: Annotated[
        Acquire | None, typer.Option("--acquire", show_default=False, help="How your followers wait. [queue]")
    ] = None,
    retry_max: Annotated[float | None, seconds("--retry-max", "Longest wait between two polls. [30]")] = None,
    no_fencing: Annotated[bool, typer.Option("--no-fencing", help="Your locks have fencing=False.")] = False,
    allow_pooler: Annotated[bool, typer.Option("--allow-pooler", help="Your locks have allow_pooler=True.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what would hurt a lock here, and the remedies.

    Server, role and settings are examined as a lock would meet them. Nothing is changed, no lock is taken, and no
    session stays. Run it as the role, in the environment and on the machine of your candidates: settings in
    PGELECT_LEASE_S and the like count, as they do for these.

    Exit code: 0 all is well or worth a note, 1 warnings, 3 the server cannot be reached, 4 errors.

    \b
    Examples:
      pgelect doctor
      pgelect doctor invoices --lease 10 --health-interval 2
      pgelect doctor --dsn postgresql://app@db/app --json
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    key = lock_key_or_all(name, key1, key2)
    given: dict[str, Any] = {
        "dsn": dsn,
        "lease_s": lease,
        "health_interval_s": health_interval,
        "health_timeout_s": health_timeout,
        "reconnect_grace_s": reconnect_grace,
        "takeover_delay_s": takeover_delay,
        "drain_timeout_s": drain,
        "acquire": None if acquire is None else acquire.value,
        "fencing": False if no_fencing else None,
        "allow_pooler": True if allow_pooler else None,
    }
    with told("doctor"):
        plan = _plan(key, {argument: value for argument, value in given.items() if value is not None}, retry_max)
    perform("doctor", _examine(plan, as_json=as_json))


def _plan(key: LockKey | None, given: dict[str, Any], retry_max_s: float | None) -> Plan:
    """Make the settings as a lock would: what is given, then the environment, then the defaults.

    Raises:
        ValueError: a setting is out of range, or contradicts another, or the DSN cannot be parsed.
    """
    from pgelect._environment import settings_from_env  # noqa: PLC0415 -- help must come at once
    from pgelect._postgres.dsn import check_dsn  # noqa: PLC0415 -- as above
    from pgelect.retry import ExponentialBackoff  # noqa: PLC0415 -- as above

    if retry_max_s is not None and not 0 < retry_max_s < inf:
        raise ValueError(f"retry_max_s={retry_max_s!r} must be a finite number greater than 0")
    found = settings_from_env((key.name if key else None) or "", os.environ, given)
    arguments = found.arguments
    check_dsn(arguments.get("dsn", ""))
    known = {item.name: arguments[item.name] for item in fields(Settings) if item.name in arguments}
    with found.naming_variables():
        settings = Settings(**{"identity": default_identity(), **known, "key": key or LockKey(0, 0)})
    strategy = arguments.get("retry_strategy", ExponentialBackoff())
    longest = getattr(strategy, "max_s", getattr(strategy, "interval_s", None))
    return Plan(
        key=key,
        settings=settings,
        poll_max_s=longest if retry_max_s is None else retry_max_s,
        dsn=arguments.get("dsn", ""),
        allow_pooler=arguments.get("allow_pooler", False),
    )


async def _examine(plan: Plan, *, as_json: bool) -> int:
    from pgelect._engine.bounds import bounds_of  # noqa: PLC0415 -- as above
    from pgelect.cli.doctor_checks import findings, worst  # noqa: PLC0415 -- as above
    from pgelect.cli.doctor_facts import Severity  # noqa: PLC0415 -- as above
    from pgelect.cli.doctor_looks import examine  # noqa: PLC0415 -- as above
    from pgelect.cli.doctor_view import show, show_json  # noqa: PLC0415 -- as above

    bounds = bounds_of(plan.settings, plan.poll_max_s)
    facts = await examine(plan.dsn, plan.key, plan.settings, bounds, allow_pooler=plan.allow_pooler)
    found = findings(facts)
    if as_json:
        show_json(facts, found)
    else:
        show(found)
    return {Severity.WARNING: Code.NO, Severity.ERROR: Code.REFUSED}.get(worst(found), Code.OK)
