"""``pgelect health``: one question with a yes or a no, for probes and monitoring.

Of a process: whether its health endpoint says yes. Of a lock: whether it has a leader of which the server has heard
within its lease. Exit codes: 0 yes, 1 no (a process that does not answer is not healthy), 3 the server is away.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from pgelect._engine.model import LockKey
from pgelect.cli.ending import Code, perform
from pgelect.cli.options import AsJson, Dsn, Key1, Key2, Name, a_number, lock_key

if TYPE_CHECKING:
    from datetime import datetime

    from pgelect._engine.model import LeaderRecord

_MARGIN_S = 1.0  # a look that comes just when the lease is over, and the server about to end the session


def health(
    name: Name = None,
    key1: Key1 = None,
    key2: Key2 = None,
    *,
    http_port: Annotated[
        int | None,
        typer.Option("--http-port", min=1, max=65535, show_default=False, help="Ask the process that serves it here."),
    ] = None,
    url: Annotated[str | None, typer.Option("--url", show_default=False, help="The same, as http://host:port.")] = None,
    ready: Annotated[bool, typer.Option("--ready", help="With either: ask /readyz, and not /livez.")] = False,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.1, max=3600, callback=a_number, help="For the endpoint to answer, in seconds."),
    ] = 3.0,
    dsn: Dsn = "",
    as_json: AsJson = False,
) -> None:
    """Tell whether a process is healthy, or a lock is led.

    For the probes of a process ask its own endpoint, which 'pgelect run --http-port' or pgelect.http serves: a follower
    is healthy, too. With a NAME the database is asked, and the answer is about all candidates together: that is for
    monitoring. As a liveness probe it would restart every candidate whenever the database is away.

    Exit code: 0 yes, 1 no or no answer from the process, 3 the database cannot be reached.

    \b
    Examples:
      pgelect health --http-port 8080
      pgelect health invoices
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    by_name = any(given is not None for given in (name, key1, key2))
    if (http_port is not None) + (url is not None) + by_name != 1:
        raise typer.BadParameter("say what to ask: --http-port or --url for a process, or the NAME of a lock")
    if ready and by_name:
        raise typer.BadParameter("--ready goes with --http-port or --url")
    if by_name:
        perform("health", _of_lock(dsn, lock_key(name, key1, key2), as_json=as_json))
    base = url if url is not None else f"http://127.0.0.1:{http_port}"
    if not base.startswith(("http://", "https://")):
        raise typer.BadParameter("--url begins with http:// or https://")
    perform("health", _of_process(f"{base.rstrip('/')}/{'readyz' if ready else 'livez'}", timeout, as_json=as_json))


async def _of_process(url: str, timeout_s: float, *, as_json: bool) -> int:
    import asyncio  # noqa: PLC0415 -- help must come at once

    from pgelect._aside import aside  # noqa: PLC0415 -- as above
    from pgelect.cli.output import clean, say, say_json  # noqa: PLC0415 -- as above
    from pgelect.cli.probing import Answer, probe  # noqa: PLC0415 -- as above

    try:
        async with asyncio.timeout(timeout_s):  # for all of it; the probe's own is for each word of the answer
            answer = await aside(lambda: probe(url, timeout_s), "pgelect-probe")
    except TimeoutError:
        answer = Answer(healthy=False, reason=f"no answer from {url} within {timeout_s:g} s")
    if as_json:
        say_json({"healthy": answer.healthy, "reason": answer.reason})
    else:
        say(f"{'healthy' if answer.healthy else 'not healthy'}: {clean(answer.reason)}")
    return Code.OK if answer.healthy else Code.NO


async def _of_lock(dsn: str, key: LockKey, *, as_json: bool) -> int:
    from pgelect.cli.lookers import looking  # noqa: PLC0415 -- as above
    from pgelect.cli.output import say, say_json  # noqa: PLC0415 -- as above
    from pgelect.observe import get_leader  # noqa: PLC0415 -- as above

    async with looking(dsn) as looker:
        record, now = await looker.ask(lambda conn: get_leader(conn, key)), await looker.now()
    healthy, reason = judge(record, key, now)
    if as_json:
        say_json({"healthy": healthy, "reason": reason, "record": record})
    else:
        say(f"{'healthy' if healthy else 'not healthy'}: {reason}")
    if record is not None and record.alive is None:
        return Code.UNREACHABLE
    return Code.OK if healthy else Code.NO


def judge(record: "LeaderRecord | None", key: LockKey, now: "datetime") -> tuple[bool, str]:
    """Say whether a lock is led by somebody of whom the server has heard within the lease, and why (not)."""
    from pgelect.cli.records import age, standing  # noqa: PLC0415 -- as above

    said = standing(record, key, now)
    if record is None or not record.alive:
        return False, said
    heard = record.last_contact_at
    if heard is None:  # hidden from this role; the server itself ends a session that is silent for a lease
        return True, said
    silent_s = (now - heard).total_seconds()
    if silent_s > record.lease_s + _MARGIN_S:
        return False, f"{said} The server has heard nothing from it for {age(heard, now)}, and its lease is over."
    return True, f"{said} The server last heard from it {age(heard, now)} ago."
