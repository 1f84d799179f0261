"""A hostile role takes the locks by which members of a group know each other: what it gains, and what it does not."""

import struct

import pytest

from pgelect import FixedInterval, LeaderGroup
from pgelect._postgres.group_sql import Ring, weight_bits
from tests.support.roles import LOCK_FUNCTIONS, Role, Roles, refused_all
from tests.support.server import query
from tests.support.waiting import eventually

NAMES = [f"part-{number}" for number in range(8)]
RING = Ring.of("orders")
POSES = f"SELECT pg_advisory_lock({RING.group}, 4711)"
NAN = struct.unpack(">i", struct.pack(">f", float("nan")))[0]


def member_of(role: Role, identity: str) -> LeaderGroup[str]:
    return LeaderGroup(
        role.dsn,
        names=NAMES,
        group="orders",
        identity=identity,
        lease_s=2.0,
        health_interval_s=0.5,
        rebalance_interval_s=0.5,
        retry_strategy=FixedInterval(0.1),
    )


async def test_a_neighbour_that_poses_as_a_member_has_its_share_left_to_it_and_leads_nothing(roles: Roles) -> None:
    """With a great weight it is nearly all. It is seen in pg_locks, and gone with its session."""
    elector, _ = roles.electors_and_writers()
    neighbour = roles.neighbour()
    hostile = roles.connect(neighbour)
    hostile.execute(f"{POSES}; SELECT pg_advisory_lock_shared({RING.weight}, {weight_bits(1e6)})".encode())
    async with member_of(elector, "one") as group:
        await eventually(lambda: group.members == 2 and len(group.leading) == 1, message="it has its share")
        assert query(roles.database, "SELECT count(*) FROM pgelect.token WHERE holder <> 'one'") == [(0,)]
        poser = query(
            roles.database,
            "SELECT usename FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' "
            "AND classid = %s AND objid = 4711 AND granted",
            RING.group & 0xFFFFFFFF,
        )
        assert poser == [(neighbour.name,)]
        hostile.close()
        await eventually(lambda: len(group.leading) == 8, message="it leads everything")


@pytest.mark.parametrize("bits", [NAN, 0, weight_bits(-1.0), weight_bits(float("inf"))])
async def test_a_weight_that_no_member_can_have_counts_as_one(roles: Roles, bits: int) -> None:
    elector, _ = roles.electors_and_writers()
    hostile = roles.connect(roles.neighbour())
    hostile.execute(f"{POSES}; SELECT pg_advisory_lock_shared({RING.weight}, {bits})".encode())
    async with member_of(elector, "one") as group:
        await eventually(lambda: len(group.leading) == 4 and group.share == 4, message="it leads half")


async def test_with_the_right_to_lock_for_electors_only_nobody_else_can_pose(roles: Roles) -> None:
    elector, _ = roles.electors_and_writers()
    roles.run(LOCK_FUNCTIONS, app_elector=elector.name)
    refused_all(roles.connect(roles.neighbour()), [POSES])
    async with member_of(elector, "one") as group:
        await eventually(lambda: len(group.leading) == 8, message="it leads everything")
