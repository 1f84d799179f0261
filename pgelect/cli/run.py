"""``pgelect run``: its options, and what is made of them. What it does then is in run_campaign."""

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from shutil import which
from typing import Annotated, Any

import typer

from pgelect import ExponentialBackoff, LeaderLock
from pgelect._engine.meter import Metrics
from pgelect._engine.settings import Settings, check_argument_s
from pgelect._environment import Found, settings_from_env
from pgelect.cli.ending import SIGNALS, complain, told
from pgelect.cli.options import AsJson, DsnOfALock, Key1, Key2, Name, lock_key, seconds
from pgelect.cli.run_campaign import RELEASE_S, Campaign, Plan
from pgelect.cli.run_command import NOT_FOUND

GRACE_S = 10.0
OPTIONS = {
    "dsn": "--dsn",
    "key1": "--key1",
    "key2": "--key2",
    "identity": "--identity",
    "metadata": "--metadata",
    "health_interval_s": "--health-interval",
    "health_timeout_s": "--health-timeout",
    "lease_s": "--lease",
    "reconnect_grace_s": "--reconnect-grace",
    "acquire": "--acquire",
    "retry_strategy": "--retry-base and --retry-max",
    "takeover_delay_s": "--takeover-delay",
    "drain_timeout_s": "--drain",
    "auto_reacquire": "--once",
    "fencing": "--no-fencing",
    "allow_pooler": "--allow-pooler",
}
"""What each argument of the constructor is here: errors name both."""


class Acquire(StrEnum):
    """How to wait for leadership."""

    QUEUE = "queue"
    POLL = "poll"


def run(
    name: Name = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", show_default=False, help="What to run while leading."),
    ] = None,
    *,
    key1: Key1 = None,
    key2: Key2 = None,
    dsn: DsnOfALock = None,
    once: Annotated[bool, typer.Option("--once", help="End after one term, however it ended.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start the command again when it ends by itself, instead of ending, too.")
    ] = False,
    wait: Annotated[
        float | None, seconds("--wait", "Give up, with exit code 1, if not leading by then; 0: one attempt. [for ever]")
    ] = None,
    drain: Annotated[
        float | None, seconds("--drain", "Between TERM and KILL when leadership is given up. [10]")
    ] = None,
    lease: Annotated[
        float | None, seconds("--lease", "When the server frees the lock of a silent leader. [15]")
    ] = None,
    health_interval: Annotated[
        float | None, seconds("--health-interval", "Between two proofs of leadership. [5]")
    ] = None,
    health_timeout: Annotated[
        float | None, seconds("--health-timeout", "How long a proof may take. [what the lease allows]")
    ] = None,
    reconnect_grace: Annotated[
        float | None, seconds("--reconnect-grace", "How long to try to go on with a term whose session is lost. [0]")
    ] = None,
    acquire: Annotated[
        Acquire | None,
        typer.Option("--acquire", show_default=False, help="Wait in the server's queue, or poll. [queue]"),
    ] = None,
    retry_base: Annotated[float | None, seconds("--retry-base", "First wait after a failed attempt. [1]")] = None,
    retry_max: Annotated[float | None, seconds("--retry-max", "Longest wait after a failed attempt. [30]")] = None,
    takeover_delay: Annotated[
        float | None, seconds("--takeover-delay", "Wait before leading after an unclean end of the last term. [0]")
    ] = None,
    identity: Annotated[
        str | None, typer.Option("--identity", show_default=False, help="Of this process, as others see it.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata", metavar="KEY=VALUE", show_default=False, help="Shown to observers; may be repeated."
        ),
    ] = None,
    no_fencing: Annotated[bool, typer.Option("--no-fencing", help="Keep no token: no schema is needed.")] = False,
    allow_pooler: Annotated[
        bool, typer.Option("--allow-pooler", help="Skip the check for transaction poolers.")
    ] = False,
    http_port: Annotated[
        int | None,
        typer.Option("--http-port", show_default=False, help="Answer /livez, /readyz, /leader, /metrics at this port."),
    ] = None,
    http_host: Annotated[str, typer.Option("--http-host", help="The address to listen at.")] = "127.0.0.1",
    as_json: AsJson = False,
) -> None:
    """Campaign for leadership, and run a command only while leading.

    The command gets TERM, and after --drain KILL, when leadership is given up; so does all of its process group, and
    the lock is freed when that is gone. When leadership is lost, KILL follows sooner: after 2.5 % of the lease, at
    least 25 ms, and the takeover delay, so that the command is gone when the lease is over. In its environment:
    PGELECT_TOKEN, PGELECT_NAME, PGELECT_KEY1, PGELECT_KEY2, PGELECT_HOLDER, PGELECT_ACQUIRED_AT. Its standard input is
    that of this command, and empty where that is a terminal.

    When the command ends by itself, so does this one, with its exit code. TERM and INT end both; a second one at once.
    HUP, USR1, USR2 and WINCH are passed on. Without a command each change is printed.

    Every setting can also stand in the environment, as PGELECT_LEASE_S or PGELECT_<NAME>_LEASE_S.

    \b
    Exit codes: that of the command (128+N for signal N), 127 and 126 where it
    cannot be started; without a command 0. And 1: not leading within --wait, or
    the one term was lost; 2: usage; 3: server unreachable; 4: refused by it.

    \b
    Examples:
      pgelect run reports
      pgelect run scheduler -- python -m app.scheduler
      pgelect run nightly --wait 0 -- backup.sh     (from cron on every host)
      pgelect run mailer --restart --drain 60 --http-port 8080 -- ./mailer
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    arguments = command or []
    key = lock_key(name, key1, key2)
    with told("run"):
        if wait is not None:
            check_argument_s("--wait", wait)
        _check_found(arguments)
        given: dict[str, Any] = {
            "dsn": dsn,
            "key1": key1,
            "key2": key2,
            "identity": identity,
            "metadata": _mapping(metadata),
            "health_interval_s": health_interval,
            "health_timeout_s": health_timeout,
            "lease_s": lease,
            "reconnect_grace_s": reconnect_grace,
            "acquire": None if acquire is None else acquire.value,
            "retry_strategy": _strategy(retry_base, retry_max),
            "takeover_delay_s": takeover_delay,
            "drain_timeout_s": drain,
            "auto_reacquire": False if once else None,
            "fencing": False if no_fencing else None,
            "allow_pooler": True if allow_pooler else None,
        }
        given = {argument: value for argument, value in given.items() if value is not None}
        found = settings_from_env(key.name or "", os.environ, given)
        found = Found(found.arguments, found.variables | {argument: OPTIONS[argument] for argument in given})
        settings = found.arguments
        grace_s = settings.get("drain_timeout_s", GRACE_S)
        with found.naming_variables():
            if arguments:
                settings["drain_timeout_s"] = check_argument_s("drain_timeout_s", grace_s) + RELEASE_S / 2
            lock = LeaderLock(**settings, metrics=None if http_port is None else _metrics())
        plan = Plan(tuple(arguments), grace_s, restart, once, wait, attended=_is_attended())
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until there is somebody who can clean up
        work = _campaign(
            lock, _settings_of(lock, settings), plan, http_host=http_host, http_port=http_port, as_json=as_json
        )
        raise typer.Exit(asyncio.run(work))


async def _campaign(
    lock: LeaderLock, settings: Settings, plan: Plan, *, http_host: str, http_port: int | None, as_json: bool
) -> int:
    campaign = Campaign(lock, settings, plan, as_json=as_json)
    if http_port is None:
        return await campaign.run()
    from pgelect.http import HealthServer  # noqa: PLC0415 -- for few, and heavy

    async with HealthServer(lock, host=http_host, port=http_port) as server:
        complain("run", f"answering probes at {server.url}")
        return await campaign.run()


def _metrics() -> Metrics | None:
    """Make what /metrics shows; None where prometheus-client is not installed, and /metrics says so."""
    try:
        from pgelect.metrics import PrometheusMetrics  # noqa: PLC0415 -- optional

        return PrometheusMetrics()
    except ImportError:
        return None


def _settings_of(lock: LeaderLock, arguments: Mapping[str, Any]) -> Settings:
    known = {item.name: arguments[item.name] for item in fields(Settings) if item.name in arguments}
    return Settings(**{**known, "key": lock.key, "identity": lock.identity})


def _strategy(base_s: float | None, max_s: float | None) -> ExponentialBackoff | None:
    given = {name: value for name, value in (("base_s", base_s), ("max_s", max_s)) if value is not None}
    options = {"base_s": "--retry-base", "max_s": "--retry-max"}
    with Found({}, {argument: options[argument] for argument in given}).naming_variables():
        return ExponentialBackoff(**given) if given else None


def _mapping(words: list[str] | None) -> dict[str, str] | None:
    if not words:
        return None
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"--metadata {word!r} is not of the form KEY=VALUE")
        found[name] = value
    return found


def _check_found(arguments: list[str]) -> None:
    """End at once where the command does not exist: to learn it only when leading would be late."""
    if arguments and which(arguments[0]) is None and not (arguments[0] and Path(arguments[0]).exists()):
        complain("run", f"cannot start {arguments[0]!r}: there is no such command")
        raise typer.Exit(NOT_FOUND)


def _is_attended() -> bool:
    """Whether a terminal hangs on this process, and ends it with SIGHUP when it goes."""
    try:
        os.close(os.open(os.ctermid(), os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
