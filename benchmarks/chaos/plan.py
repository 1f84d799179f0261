"""What a run is made of: the replicas and their settings, the timings, and how much must have happened."""

from __future__ import annotations

from dataclasses import dataclass

ISOLATIONS = ("READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE")
LOCK_NAME = "chaos"
GROUP_NAME = "chaos-group"
PARTITIONS = tuple(f"chaos-partition-{number}" for number in range(6))
REBALANCE_S = 2.0
DATABASE = "chaos"
ROLE = "chaos_replica"
CROWD = "chaos_crowd"

HEALTH_INTERVAL_S = 0.5
DRAIN_S = 1.0
BACKOFF_BASE_S, BACKOFF_MAX_S = 0.2, 1.0
CONNECT_TIMEOUT_S = 2
"""For each of the two hosts; libpq takes no less."""


@dataclass(frozen=True, slots=True)
class Character:
    """One replica: its settings, and whether it names the second server first."""

    name: str
    lease_s: float
    grace_s: float | None = None
    reverse: bool = False


CHARACTERS = (
    Character("r0", lease_s=2.0),
    Character("r1", lease_s=2.0, grace_s=1.0, reverse=True),
    Character("r2", lease_s=2.5),
    Character("r3", lease_s=3.0, grace_s=2.0),
    Character("r4", lease_s=2.0, reverse=True),
)

PLACES = 2
"""In the queue for the lock, in place of the library's four: so of five replicas two stand aside."""
MAX_CONNECTIONS = 40
SERVER_SETTINGS = {
    "max_connections": str(MAX_CONNECTIONS),
    "superuser_reserved_connections": "8",
    "track_commit_timestamp": "on",  # the checker's order of commits
    "wal_keep_size": "256MB",  # a standby that was cut off for a while catches up
    "wal_retrieve_retry_interval": "100ms",
    "wal_sender_timeout": "10s",  # a busy machine is to break no stream: an orderly stop waits for the standby
    "wal_receiver_timeout": "10s",
    "password_encryption": "scram-sha-256",
}

LEADER_WITHIN_S = 30.0
"""The nemesis waits this long for a leader before its next fault; what is allowed is judged by the checker."""
STARTS_WITHIN_S = 60.0
ENDS_WITHIN_S = 15.0

FULL_S = 90.0
"""In a run of this length every kind of fault has its turn."""
LEAST = {
    "faults": 26,
    "terms": 20,
    "takeovers": 18,
    "acknowledged writes": 100,
    "stale writes refused": 30,
    "terms of partitions": 60,
}
"""What must have happened in FULL_S; longer and shorter runs in proportion."""
