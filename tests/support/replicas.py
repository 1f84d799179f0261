"""Replicas as a test sees them: processes of `replica.py`, what they told, and their sessions on the server."""

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.processes import Worker
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually_sync

ROOT = Path(__file__).parents[2]


class Replica(Worker):
    """One process that runs a LeaderLock; see `replica.py` for what it prints and obeys."""

    def __init__(self, dsn: str, key: tuple[int, int], identity: str, **settings: Any) -> None:
        lease_s = settings.get("lease_s", 1.0)
        given = {"dsn": dsn, "key": key, "identity": identity, "lease_s": lease_s, "health_interval_s": lease_s / 5}
        self.dsn, self.identity = dsn, identity
        super().__init__("-m", "tests.support.replica", json.dumps({**given, **settings}), cwd=str(ROOT))

    def wait_for(self, event: str, timeout_s: float = 15.0, *, after: int = 0, **fields: Any) -> dict[str, Any]:
        """Return the first such event from number `after` on, waiting for it."""
        wanted = {"event": event, **fields}
        return self.wait_event(lambda told: wanted.items() <= told.items(), timeout_s, after=after)

    def ask(self, command: str, timeout_s: float = 15.0) -> dict[str, Any]:
        """Give a command, and return its answer."""
        after = len(self.events)
        self.tell(command)
        return self.wait_for(command.split(maxsplit=1)[0], timeout_s, after=after)

    def all(self, *events: str) -> list[dict[str, Any]]:
        """What it told of these kinds, so far."""
        return [told for told in self.events if told["event"] in events]

    def tokens(self, event: str) -> list[int]:
        """The tokens of all terms "acquired", "lost" or "released"."""
        return [told["token"] for told in self.all(event)]

    @property
    def term(self) -> int:
        """The token of the term that it says it has; 0 for none."""
        last = self.all("acquired", "lost", "released")[-1:]
        return int(last[0]["token"]) if last and last[0]["event"] == "acquired" else 0

    @property
    def sessions(self) -> list[int]:
        """The pids of its election sessions on the server."""
        return [session.pid for session in sessions(self.dsn, f"pgelect:%:{self.identity}")]


class Replicas:
    """Several of them on one key, and the table `ledger` they write to; all end with the `with` statement."""

    def __init__(self, dsn: str, key: tuple[int, int], **settings: Any) -> None:
        self.dsn, self.key, self._settings = dsn, key, settings
        self._started = ExitStack()
        query(dsn, "CREATE TABLE public.ledger (n bigserial PRIMARY KEY, token bigint NOT NULL)")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._started.close()

    def launch(self, identity: str, *, through: str | None = None, **settings: Any) -> Replica:
        """Start one, connected `through` another way than `dsn` if given, and return at once."""
        given = {**self._settings, **settings}
        return self._started.enter_context(Replica(through or self.dsn, self.key, identity, **given))

    def start(self, identity: str, *, through: str | None = None, **settings: Any) -> Replica:
        """Start one, and return when its lock has been started."""
        replica = self.launch(identity, through=through, **settings)
        replica.wait_for("started", 30)
        return replica

    def leading(self, replica: Replica, *, above: int = 0, timeout_s: float = 15.0) -> int:
        """Wait until that one leads with a token above `above`, and the server says so too; return the token."""
        led = replica.wait_event(lambda told: told["event"] == "acquired" and told["token"] > above, timeout_s)
        eventually_sync(lambda: self.holders() == replica.sessions != [], message=f"{replica.identity} holds the lock")
        return int(led["token"])

    def waiting(self, replica: Replica, timeout_s: float = 15.0) -> list[int]:
        """Wait until that one alone waits in the server's queue; return the pid of its session."""

        def waits() -> list[int]:
            pids = lock_waiters(self.dsn, *self.key)
            return pids if pids == replica.sessions else []

        return eventually_sync(waits, timeout_s, f"{replica.identity} waits in the queue")

    def holders(self) -> list[int]:
        """The pids that hold the lock."""
        return lock_holders(self.dsn, *self.key)

    def ledger(self) -> list[int]:
        """The tokens written, in order."""
        return [token for (token,) in query(self.dsn, "SELECT token FROM public.ledger ORDER BY n")]
