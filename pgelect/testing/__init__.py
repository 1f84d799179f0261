"""Help for testing programs that elect a leader: a throwaway PostgreSQL server, a fake one, a fake clock."""

from pgelect.testing.clock import FakeClock
from pgelect.testing.election import LocalElection, local_election
from pgelect.testing.fake import FakeClient, FakeSerializationError, FakeServer, FakeSession, FakeTransaction
from pgelect.testing.postgres import Postgres, find_installed, installed_postgres, throwaway_postgres

__all__ = [
    "FakeClient",
    "FakeClock",
    "FakeSerializationError",
    "FakeServer",
    "FakeSession",
    "FakeTransaction",
    "LocalElection",
    "Postgres",
    "find_installed",
    "installed_postgres",
    "local_election",
    "throwaway_postgres",
]
