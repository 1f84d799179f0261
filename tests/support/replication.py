"""A primary and a standby that streams from it, and failovers between them that may lose what was written last.

The standby is held back by taking its upstream away: it keeps what it has received, and a promotion starts from there.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal, Protocol

from psycopg.conninfo import make_conninfo

from pgelect.testing import Postgres, installed_postgres, throwaway_postgres
from tests.support.environment import installed_programs
from tests.support.server import query, sessions
from tests.support.waiting import eventually_sync

Version = Literal["pg16", "pg18", "pg_debian"]
VERSIONS: tuple[Version, ...] = ("pg16", "pg18", "pg_debian")

TIMELINE = 1 << 40
"""So much greater are the tokens of one timeline than those of the one before."""

_STREAMS = "SELECT 1 FROM pg_stat_wal_receiver WHERE status = 'streaming'"
_LAG = "SELECT pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn(), (SELECT status FROM pg_stat_wal_receiver)"
_TIMELINE = "SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int8"


class Host(Protocol):
    """What can be connected to on 127.0.0.1: a server, or a proxy in front of one."""

    @property
    def port(self) -> int: ...


class Pair:
    """Two servers of a test's own. `primary` and `standby` say which part each plays now; a failover swaps them."""

    def __init__(self, primary: Postgres, standby: Postgres) -> None:
        self.primary = primary
        self.standby = standby

    @property
    def timeline(self) -> int:
        """That of the primary, as it says."""
        return int(query(self.primary.dsn(), _TIMELINE)[0][0])

    def caught_up(self) -> None:
        """Wait until the standby has replayed all that the primary has written."""
        # Its commit has all flushed that was written before it, open transactions included: only that is sent.
        query(self.primary.dsn(), "SELECT pg_logical_emit_message(true, '', '')")
        ((written,),) = query(self.primary.dsn(), "SELECT pg_current_wal_flush_lsn()::text")
        replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        try:
            eventually_sync(lambda: query(self.standby.dsn(), replayed, written)[0][0], message="it has caught up")
        except AssertionError as late:
            seen = query(self.standby.dsn(), _LAG)
            raise AssertionError(f"{late}; it is at {seen}, and said:\n{self.standby.log_text()[-3000:]}") from None

    def hold_back(self) -> None:
        """The standby has all that was written so far, and receives nothing from here on."""
        self.caught_up()
        self._stream_from("")
        receiver = "SELECT pid FROM pg_stat_wal_receiver"
        eventually_sync(lambda: not query(self.standby.dsn(), receiver), message="the standby receives no more")

    def follow(self) -> None:
        """The standby streams from the primary, from now on or again, and has all that was written meanwhile."""
        self._stream_from(self.primary.dsn())
        self.caught_up()

    def fail_over(self) -> None:
        """The primary dies, all its sessions end, and the standby becomes primary with what it had."""
        self.primary.stop("immediate")
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def rejoin(self) -> None:
        """The server that is not the primary gives up its data and streams from it, on the port that it had."""
        self.standby.follow(self.primary)
        self.caught_up()

    def restore(self) -> None:
        """Whatever a test did to the pair: one of them is a primary, empty, and the other streams from it."""
        self.primary.start()
        query(self.primary.dsn(), "ALTER SYSTEM RESET ALL")
        self.primary.reload()
        query(self.primary.dsn(), "DROP SCHEMA IF EXISTS pgelect CASCADE; DROP TABLE IF EXISTS ledger")
        if not self.standby.is_running or not query(self.standby.dsn(), _STREAMS):
            self.rejoin()

    def _stream_from(self, conninfo: str) -> None:
        query(self.standby.dsn(), make_alter("primary_conninfo", conninfo))
        self.standby.reload()


@contextmanager
def replicated(version: Version = "pg18", **settings: str) -> Iterator[Pair]:
    """Start a pair; at its end no session of pgelect may remain on either server."""
    with start(version, **settings) as first, first.standby() as second:
        yield Pair(first, second)
        for server in (first, second):
            none_remain(server)


class Pairs:
    """Pairs that tests share, one of each version: made when first asked for, and put in order before each test."""

    def __init__(self, stack: ExitStack, settings: dict[str, str]) -> None:
        self._stack = stack
        self._settings = settings
        self._made: dict[Version, Pair] = {}

    @contextmanager
    def lend(self, version: Version = "pg18") -> Iterator[Pair]:
        """A pair in order; its timeline is whatever the tests before have left. After it no session may remain."""
        if version in self._made:
            self._made[version].restore()
        else:
            self._made[version] = self._stack.enter_context(replicated(version, **self._settings))
        pair = self._made[version]
        yield pair
        for server in (pair.primary, pair.standby):
            none_remain(server)


@contextmanager
def shared_pairs(**settings: str) -> Iterator[Pairs]:
    """Pairs for the tests of one module."""
    with ExitStack() as stack:
        yield Pairs(stack, settings)


def start(version: Version, **settings: str) -> Postgres:
    """Start a server of that version."""
    if version != "pg_debian":
        return throwaway_postgres(int(version.removeprefix("pg")), settings=settings)
    return installed_postgres(installed_programs(), settings=settings)


def hosts(*servers: Host, **params: str | int) -> str:
    """A connection string with several hosts, tried in this order."""
    places = {"host": ",".join("127.0.0.1" for _ in servers), "port": ",".join(str(one.port) for one in servers)}
    return make_conninfo("user=postgres dbname=postgres", **places, **params)


def make_alter(setting: str, value: str) -> str:
    """The statement that writes a setting into the server's own file."""
    quoted = value.replace("'", "''")
    return f"ALTER SYSTEM SET {setting} = '{quoted}'"


def none_remain(server: Postgres) -> None:
    """No session of pgelect is left on the server, if it runs."""
    if server.is_running:
        eventually_sync(lambda: not sessions(server.dsn()), 2.0, "no session of pgelect is left")
