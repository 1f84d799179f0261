"""The demo's four acts: what is done to the leader, and what is then seen.

Each act begins when the leader has written some lines and every other replica stands in the server's queue.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from pgelect.cli.demo_replicas import DemoError, Replica, Replicas, Report
from pgelect.cli.demo_results import Act, Claim, Results, ledger_claims, terms_claim
from pgelect.cli.demo_worker import LEASE_S, STEP_DOWN, WRITE_ANYWAY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pgelect.cli.demo_ledger import Ledger
    from pgelect.cli.demo_view import View

T = TypeVar("T")

_REPLICAS = 3
_WRITES_BEFORE_ACT = 5
_SETTLE_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.02
_STALE, _UNFENCED = "PGE01", "PGE02"


class Story:
    """Plays the acts in order, and says what happens as it happens."""

    def __init__(self, replicas: Replicas, ledger: Ledger, view: View) -> None:
        self._replicas = replicas
        self._ledger = ledger
        self._view = view
        self._claims: list[Claim] = []

    async def play(self) -> Results:
        """Run the whole demo.

        Raises:
            DemoError: something did not happen, so that the next act makes no sense.
            PgElectError: the server could not be asked.
        """
        began = time.monotonic()
        await self._open()
        acts = (await self._crash(), await self._deploy(), await self._freeze(), await self._evict())
        await self._settled()
        await self._replicas.end()
        lines = await self._ledger.lines()
        begun = sorted((report for report in self._replicas.reports if report.what == "acquired"), key=lambda r: r.at)
        self._claims.append(terms_claim(report.data["token"] for report in begun))
        self._claims += ledger_claims(lines, self._replicas.acknowledged)
        return Results(self._ledger.server, acts, tuple(self._claims), len(lines), time.monotonic() - began)

    # -- the acts ------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        self._view.headline("Three replicas start. Whoever leads adds lines to a ledger, fenced by its token.")
        for _ in range(_REPLICAS):
            await self._replicas.start()
        first = await self._acquired(since=0, doing="waiting for a first leader")
        self._view.say(f"{first.replica.name} leads, with token {first.data['token']}.")
        await self._settled()
        self._view.say("The two others wait in the server's queue for the lock.")

    async def _crash(self) -> Act:
        leader, since = await self._settled(), self._mark()
        self._view.headline("Act 1. The leader crashes.")
        self._view.say(f"kill -KILL {leader.pid}  ({leader.name})")
        killed_at = leader.kill()
        new = await self._acquired(since, f"waiting for a new leader after {leader.name} was killed")
        act = self._act("crash (SIGKILL)", leader, new, killed_at)
        other = await self._replicas.start()
        self._view.say(f"{other.name} is started in place of {leader.name}.")
        return act

    async def _deploy(self) -> Act:
        leader, since = await self._settled(), self._mark()
        self._view.headline("Act 2. A rolling deploy: the leader is asked to step down.")
        self._view.say(f"await lock.step_down()  (in {leader.name})")
        leader.tell(do=STEP_DOWN)
        asked = await self._heard("stepping_down", leader, since)
        new = await self._acquired(since, f"waiting for a new leader after {leader.name} stepped down")
        act = self._act("step_down()", leader, new, asked.at)
        done = await self._heard("stepped_down", leader, since)
        released = await self._heard("released", leader, since)
        clean = bool(done.data["done"]) and released.data["token"] == act.old_token and act.new != act.old
        self._claims.append(Claim("the leader that stepped down released the lock to another", clean))
        return act

    async def _freeze(self) -> Act:
        leader, since = await self._settled(), self._mark()
        self._view.headline("Act 3. The leader freezes, and wakes up when another leads.")
        self._view.say(f"kill -STOP {leader.pid}  ({leader.name})")
        self._view.say(f"Its lease: PostgreSQL ends the session {LEASE_S:g} s after it last heard from it ...")
        stopped_at = leader.stop()
        new = await self._acquired(since, f"waiting for the server to end the lease of {leader.name}")
        act = self._act("freeze (SIGSTOP)", leader, new, stopped_at)
        await self._written_by(new.replica)  # else a late write that is taken would not be seen to come too late
        leader.tell(do=WRITE_ANYWAY)  # lies in its standard input until it wakes
        leader.go_on()
        self._view.say(f"kill -CONT {leader.pid}  ({leader.name})")
        self._judge_late_writes(await self._heard("wrote_anyway", leader, since))
        await self._heard("lost", leader, since)
        return act

    async def _evict(self) -> Act:
        leader, since = await self._settled(), self._mark()
        self._view.headline("Act 4. An administrator ends the leader's session on the server.")
        pid = await self._ledger.holder()
        if pid is None:
            raise DemoError(f"{leader.name} says that it leads, but no session holds the lock")
        self._view.say(f"SELECT pg_terminate_backend({pid})  (the session of {leader.name})")
        ended_at = time.monotonic()
        await self._ledger.end_session(pid)
        lost = await self._heard("lost", leader, since)
        self._view.say(f"{leader.name} hears {_ms(lost.at - ended_at)} later that it has lost.")
        new = await self._acquired(since, f"waiting for a new leader after the session of {leader.name} was ended")
        return self._act("session ended", leader, new, ended_at, noticed_s=lost.at - ended_at)

    # -- what is seen --------------------------------------------------------------------------------------------------

    async def _settled(self) -> Replica:
        """Wait until one leads, has written, and all others queue; give the reader a moment; return the leader."""

        async def settled() -> Replica | None:
            leader = self._replicas.leader
            if leader is None or leader.writes_in_term < _WRITES_BEFORE_ACT:
                return None
            return leader if await self._ledger.waiting() == len(self._replicas.living) - 1 else None

        leader = await self._soon(settled, "no leader with the others in the queue")
        await asyncio.sleep(self._view.breath_s)
        return leader

    async def _written_by(self, replica: Replica) -> None:
        async def written() -> bool:
            return replica.writes_in_term > 0

        await self._soon(written, f"{replica.name} leads and has written nothing")

    async def _soon(self, look: Callable[[], Awaitable[T | None]], otherwise: str) -> T:
        """Look again and again until there is something to be seen."""
        deadline = time.monotonic() + _SETTLE_WITHIN_S
        while not (found := await look()):
            self._replicas.check()
            if time.monotonic() > deadline:
                raise DemoError(f"{otherwise} within {_SETTLE_WITHIN_S:g} s")
            await asyncio.sleep(_LOOK_EVERY_S)
        return found

    def _mark(self) -> int:
        return len(self._replicas.reports)

    async def _acquired(self, since: int, doing: str) -> Report:
        return await self._replicas.first(_is("acquired"), doing, since=since)

    async def _heard(self, what: str, replica: Replica, since: int) -> Report:
        return await self._replicas.first(_is(what, replica), f"waiting for {replica.name} ({what})", since=since)

    def _act(self, title: str, old: Replica, new: Report, began_at: float, noticed_s: float | None = None) -> Act:
        took_s = new.at - began_at
        token = new.data["token"]
        self._view.say(f"{new.replica.name} leads {_ms(took_s)} later, with token {token}.")
        return Act(title, old.name, new.replica.name, old.token or 0, token, took_s, noticed_s)

    def _judge_late_writes(self, report: Report) -> None:
        said, token = report.data, report.data["token"]
        self._view.say(f"{report.replica.name} looks at lock.is_leader: {said['first_look']}.")
        self._show(f"It writes all the same, with its old token {token}.", said["with_token"])
        self._show("It writes again, without any token.", said["without"])
        self._claims += (
            Claim("the replica that woke up saw at its first look that it no longer leads", not said["first_look"]),
            Claim("its late write with the old token was refused by the fence", _code(said["with_token"]) == _STALE),
            Claim(
                "its late write without a token was refused by the table's guard", _code(said["without"]) == _UNFENCED
            ),
        )

    def _show(self, deed: str, refusal: list[str] | None) -> None:
        if refusal is None:
            self._view.say(f"{deed} PostgreSQL TAKES the write.")
        else:
            self._view.say(f"{deed} PostgreSQL refuses:")
            self._view.quote(f"ERROR {refusal[0]}: {refusal[1]}")


def _code(refusal: list[str] | None) -> str:
    return refusal[0] if refusal is not None else ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds * 1000:.0f} ms"


def _is(what: str, replica: Replica | None = None) -> Callable[[Report], bool]:
    return lambda report: report.what == what and replica in {None, report.replica}
