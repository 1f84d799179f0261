"""``pgelect step-down``: ask the leader of a lock to hand over, wait until it has, and say who leads then.

Exit codes: 0 that term is over, or with --wait 0: asked; 1 nobody leads, the token's term was over already, or the
leader has not heeded it in time.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from pgelect._engine.model import LeaderRecord, LockKey
from pgelect.cli.ending import perform
from pgelect.cli.options import AsJson, Dsn, Key1, Key2, Name, a_number, lock_key
from pgelect.cli.step_down_words import Handover, Outcome, words

if TYPE_CHECKING:
    from pgelect.cli.lookers import Looker

LOOK_EVERY_S = 0.05
SUCCESSOR_S = 2.0  # after the end of the term: a follower leads within milliseconds, if there is one


def step_down(
    name: Name = None,
    key1: Key1 = None,
    key2: Key2 = None,
    *,
    token: Annotated[
        int | None,
        typer.Option("--token", min=1, show_default=False, help="Only if the leader has this token; else do nothing."),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", min=0, callback=a_number, help="How long to wait for the end of the term, in seconds; 0: do not."
        ),
    ] = 15.0,
    dsn: Dsn = "",
    as_json: AsJson = False,
) -> None:
    """Ask the leader of a lock to hand over, and wait for it.

    It has its drain timeout (10 s by default) to end its work, and then stays out long enough for others to take over.
    A longer drain timeout needs a longer --wait. Exit code: 0 when that term is over; 1 when nobody leads, the term of
    --token was over before, or the leader does not heed it in time.

    \b
    Examples:
      pgelect step-down invoices
      pgelect step-down invoices --token 12 --wait 60
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    perform("step-down", _step_down(dsn, lock_key(name, key1, key2), token, wait, as_json=as_json))


async def _step_down(dsn: str, key: LockKey, token: int | None, wait_s: float, *, as_json: bool) -> int:
    from pgelect.cli.lookers import looking  # noqa: PLC0415 -- help must come at once
    from pgelect.cli.output import say, say_json  # noqa: PLC0415 -- as above
    from pgelect.observe import get_leader, request_step_down  # noqa: PLC0415 -- as above

    async with looking(dsn) as looker:
        before = await looker.ask(lambda conn: get_leader(conn, key))
        began = time.monotonic()
        asked = await looker.ask(lambda conn: request_step_down(conn, key, token))
        outcome, after = await _outcome(looker, key, token, asked, wait_s)
        done = Handover(outcome, asked, round(time.monotonic() - began, 3), before, after)
        at = await looker.now()
    if as_json:
        say_json(done)
    else:
        for line in words(key, done, at):
            say(line)
    return outcome.code


async def _outcome(
    looker: "Looker", key: LockKey, token: int | None, asked: int | None, wait_s: float
) -> tuple[Outcome, LeaderRecord | None]:
    """Look until that term is over, and a moment longer for who comes next."""
    from pgelect.observe import get_leader  # noqa: PLC0415 -- as above

    deadline = time.monotonic() + wait_s
    over_since: float | None = None
    while True:
        record = await looker.ask(lambda conn: get_leader(conn, key))
        if asked is None:
            is_over = token is not None and record is not None and record.token != token
            return (Outcome.TERM_OVER if is_over else Outcome.NOBODY_LEADS), record
        if wait_s == 0:
            return Outcome.ASKED, record
        at = time.monotonic()
        if record is not None and record.token != asked:
            return Outcome.HANDED_OVER, record
        if record is None or not record.alive:
            over_since = at if over_since is None else over_since
            if at >= over_since + SUCCESSOR_S:
                return Outcome.RELEASED, record
        elif at >= deadline:
            return Outcome.NOT_HEEDED, record
        await asyncio.sleep(LOOK_EVERY_S)
