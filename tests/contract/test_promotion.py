"""What a promotion does to sessions, locks, token row and sequence, whether or not the tail of the log was lost."""

import asyncio

import psycopg
import pytest

from pgelect.errors import FenceBusyError, NotPrimaryError, SessionLostError, StaleTokenError
from tests.contract.election import WITHIN_S
from tests.contract.replication import PostgresReplicated, Replicated, on_pair
from tests.support.replication import TIMELINE, Pairs
from tests.support.server import lock_holders, query

RESERVED = 32  # so many numbers of a sequence each of its WAL records is ahead; a promotion goes on behind them


@pytest.fixture
def election(replicated: Replicated) -> Replicated:
    """An election that nobody has taken part in yet."""
    return replicated


@pytest.fixture
def on_postgres(replicated_postgres: PostgresReplicated) -> PostgresReplicated:
    """The same, for what only a real server has."""
    return replicated_postgres


def number(token: int) -> int:
    """The part of it that came from the sequence."""
    return token % TIMELINE


async def test_a_promotion_ends_the_term_of_a_session_on_the_old_primary(election: Replicated) -> None:
    session, grant = await election.leading("a")
    await election.caught_up()
    await election.fail_over()
    with pytest.raises(SessionLostError):
        await session.prove(WITHIN_S)
    assert await election.holders() == []
    row = await election.last_row()
    assert (row.token, row.released) == (grant.token, False)


async def test_the_first_token_after_a_promotion_that_lost_nothing_is_on_a_new_timeline(election: Replicated) -> None:
    _, _, before = [await election.a_term() for _ in range(3)]
    await election.caught_up()
    assert await election.sequence() == number(before.token)
    await election.fail_over()
    after = await election.a_term("b")
    assert after.timeline == before.timeline + 1
    assert after.token - number(after.token) == before.timeline * TIMELINE
    assert number(before.token) < number(after.token) <= number(before.token) + RESERVED + 1
    row = await election.last_row()
    assert (row.token, row.holder, row.terms) == (after.token, "b", 4)


async def test_after_a_lost_tail_the_row_and_the_sequence_have_gone_back_and_the_token_has_not(
    election: Replicated,
) -> None:
    known = await election.a_term()
    await election.hold_back()
    await election.use_up(2 * RESERVED)
    lost = [(await election.a_term("b", clean=False)).token for _ in range(3)]
    assert known.token < lost[0] < lost[1] < lost[2]
    assert number(lost[2]) == await election.sequence()
    await election.fail_over()
    row = await election.last_row()
    assert (row.token, row.holder, row.terms) == (known.token, "a", 1), "the row has gone back"
    assert await election.sequence() < number(lost[0]), "the sequence has gone back"
    after = await election.a_term("c")
    assert after.token > max(lost)
    assert number(after.token) < number(lost[0]), "it is the timeline that makes it greater"


async def test_tokens_grow_through_failover_after_failover_each_of_which_lost_its_tail(election: Replicated) -> None:
    """There and back: a server that lost a term is copied from the one that never had it, and takes over again."""
    first = await election.a_term()
    handed_out = [first.token]
    for failovers in (1, 2, 3):
        await election.hold_back()
        await election.use_up(2 * RESERVED)
        handed_out.append((await election.a_term()).token)
        sequence = await election.sequence()
        await election.fail_over()
        assert (await election.last_row()).token < handed_out[-1], "the row has gone back"
        assert await election.sequence() < sequence, "the sequence has gone back"
        grant = await election.a_term()
        assert grant.timeline == first.timeline + failovers
        assert grant.token - number(grant.token) == (grant.timeline - 1) * TIMELINE
        handed_out.append(grant.token)
        await election.rejoin()
    assert handed_out == sorted(set(handed_out))


async def test_a_lock_that_the_new_primary_has_never_heard_of_gets_a_greater_token(election: Replicated) -> None:
    """All of it is in the lost tail."""
    await election.hold_back()
    await election.use_up(2 * RESERVED)
    lost = await election.a_term("a", clean=False)
    await election.fail_over()
    assert await election.row() is None
    after = await election.a_term("b")
    assert after.token > lost.token


async def test_nobody_can_say_after_a_promotion_that_the_last_term_ended_cleanly(election: Replicated) -> None:
    """The row says so of the last term that it knows of. A later one may be lost, and its leader still at work."""
    await election.a_term("a")
    await election.hold_back()
    await election.a_term("b", clean=False)
    await election.fail_over()
    assert (await election.last_row()).released
    after = await election.a_term("c")
    assert not after.predecessor_clean
    assert (await election.a_term("d")).predecessor_clean, "on one timeline the row is to be trusted"


@pytest.mark.parametrize("lost_tail", [False, True])
async def test_a_term_is_not_resumed_across_a_promotion_though_its_row_is_the_last_one(
    election: Replicated, lost_tail: bool
) -> None:
    """What the new primary does not know of, nobody can exclude: another may have led on the old one meanwhile."""
    session, grant = await election.leading("a")
    await election.hold_back()
    await session.close(WITHIN_S)
    await election.is_free()
    if lost_tail:
        await election.a_term("b")
    await election.fail_over()
    row = await election.last_row()
    assert (row.token, row.released) == (grant.token, False)
    answer = await (await election.opened("a")).resume(grant, WITHIN_S)
    assert (answer.resumed, answer.final) == (False, True)
    assert "promoted" in answer.why
    assert await election.holders() == []


async def test_the_old_token_is_refused_once_a_term_has_begun_on_the_new_primary(election: Replicated) -> None:
    _, old = await election.leading("a")
    await election.caught_up()
    await election.fail_over()
    _, new = await election.leading("b")
    with pytest.raises(StaleTokenError):
        await election.checked(old.token)
    await (await election.checked(new.token)).commit()


async def test_a_token_of_the_lost_tail_is_refused_on_the_new_primary_at_once(election: Replicated) -> None:
    await election.a_term()
    await election.hold_back()
    lost = await election.a_term("b", clean=False)
    await election.fail_over()
    with pytest.raises(StaleTokenError):
        await election.checked(lost.token)


async def test_a_fenced_transaction_that_was_open_on_the_old_primary_holds_up_nobody(election: Replicated) -> None:
    """Its lock on the row is in the WAL, and its end never will be."""
    session, old = await election.leading("a")
    fenced = await election.checked(old.token)
    await session.close(WITHIN_S)
    await election.caught_up()
    await election.fail_over()
    _, new = await election.leading("b")
    assert new.token > old.token
    with pytest.raises(SessionLostError):
        await fenced.commit()


async def test_a_standby_is_refused_before_any_lock(election: Replicated) -> None:
    await election.a_term()
    await election.caught_up()
    standby = election.on_standby()
    with pytest.raises(NotPrimaryError):
        await standby.opened("a")
    assert (await standby.holders(), await standby.waiters()) == ([], [])
    await standby.close()


async def test_a_primary_that_becomes_a_standby_brings_nothing_that_was_under_way_to_a_good_end(
    election: Replicated,
) -> None:
    leader, grant = await election.leading("a")
    _, wait = await election.queued("b")
    fenced = await election.checked(grant.token)
    await fenced.write(1)
    unfenced = await election.client()
    await unfenced.begin()
    await unfenced.peek()
    await unfenced.write(2)
    async with election.demoted():
        with pytest.raises(SessionLostError):
            await leader.prove(WITHIN_S)
        with pytest.raises(SessionLostError):
            await wait
        for writer in (fenced, unfenced):
            with pytest.raises(SessionLostError):
                await writer.commit()
        with pytest.raises(NotPrimaryError):
            await election.opened("c")
    assert await election.ledger() == []
    assert (await election.holders(), await election.waiters(), await election.pids()) == ([], [], [])
    row = await election.last_row()
    assert (row.token, row.released) == (grant.token, False)
    _, successor = await election.leading("c")
    assert (successor.timeline, successor.predecessor_clean) == (grant.timeline + 1, False)


# Real servers only


async def test_the_sequence_jumps_behind_what_its_last_record_in_the_wal_reserved(
    on_postgres: PostgresReplicated,
) -> None:
    assert [number((await on_postgres.a_term()).token) for _ in range(3)] == [1, 2, 3]
    await on_postgres.caught_up()
    await on_postgres.fail_over()
    assert await on_postgres.sequence() == 1 + RESERVED
    assert [number((await on_postgres.a_term()).token) for _ in range(2)] == [1 + RESERVED + 1, 1 + RESERVED + 2]


async def test_a_lost_tail_may_hold_the_whole_schema(pairs: Pairs, key: tuple[int, int], dbname: str) -> None:
    with pairs.lend() as pair:
        async with on_pair(pair, key, dbname, prepared=False) as election:
            await election.hold_back()
            lost = await election.a_term()
            await election.fail_over()
            schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'pgelect'"
            assert await asyncio.to_thread(query, election.dsn, schemas) == [(0,)]
            after = await election.a_term("b")
            assert number(after.token) == number(lost.token) == 1
            assert after.token == lost.token + TIMELINE


async def test_a_fenced_transaction_prepared_before_the_promotion_holds_up_the_token_until_it_ends(
    on_postgres: PostgresReplicated,
) -> None:
    """Two-phase commit survives a promotion, with its lock on the row: no newer term begins before its commit."""
    election = on_postgres
    await asyncio.to_thread(query, election.dsn, "CREATE TABLE written (token bigint)")
    session, old = await election.leading("a")
    async with await psycopg.AsyncConnection.connect(election.dsn, autocommit=True) as conn:
        await conn.execute("BEGIN")
        await conn.execute("SELECT pgelect.check_token(%s, %s, %s)", (*_keys(election), old.token))
        await conn.execute("INSERT INTO written VALUES (%s)", (old.token,))
        await conn.execute("PREPARE TRANSACTION 'in flight'")
    await session.close(WITHIN_S)
    await election.caught_up()
    await election.fail_over()
    successor = await election.holding("b")
    with pytest.raises(FenceBusyError):
        await successor.mint(3.0)
    assert await asyncio.to_thread(query, election.dsn, "SELECT count(*) FROM written") == [(0,)]
    await asyncio.to_thread(query, election.dsn, "COMMIT PREPARED 'in flight'")
    new = await successor.mint(WITHIN_S)
    assert new.token > old.token
    assert await asyncio.to_thread(query, election.dsn, "SELECT token FROM written") == [(old.token,)]


async def test_a_standby_grants_the_lock_that_is_held_on_its_primary(on_postgres: PostgresReplicated) -> None:
    """Why a session on a server in recovery must never campaign."""
    await on_postgres.holding("a")
    async with await psycopg.AsyncConnection.connect(on_postgres.on_standby().dsn, autocommit=True) as conn:
        cursor = await conn.execute("SELECT pg_try_advisory_lock(%s, %s)", _keys(on_postgres))
        assert await cursor.fetchone() == (True,)
        assert len(await on_postgres.holders()) == 1


async def test_a_session_on_the_standby_lives_through_the_promotion_with_its_locks(
    on_postgres: PostgresReplicated,
) -> None:
    """So a lock that somebody took by hand on the standby is one that electors wait for afterwards."""
    await on_postgres.a_term()
    await on_postgres.caught_up()
    async with await psycopg.AsyncConnection.connect(on_postgres.on_standby().dsn, autocommit=True) as stranger:
        await stranger.execute("SELECT pg_advisory_lock(%s, %s)", _keys(on_postgres))
        await on_postgres.fail_over()
        cursor = await stranger.execute("SELECT pg_is_in_recovery()")
        assert await cursor.fetchone() == (False,)
        assert await on_postgres.holders() == [stranger.info.backend_pid]
        session = await on_postgres.opened("a")
        assert not (await session.try_lock(None, WITHIN_S)).granted
    await on_postgres.is_free()
    assert (await session.try_lock(None, WITHIN_S)).granted


async def test_a_transaction_that_was_open_on_the_standby_stays_read_only_after_the_promotion(
    on_postgres: PostgresReplicated,
) -> None:
    async with await psycopg.AsyncConnection.connect(on_postgres.on_standby().dsn) as conn:
        await conn.execute("SELECT pg_advisory_xact_lock(%s, %s)", _keys(on_postgres))
        await on_postgres.fail_over()
        assert lock_holders(on_postgres.dsn, *_keys(on_postgres)) == [conn.info.backend_pid]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await conn.execute("CREATE TABLE written (x int)")
        await conn.rollback()
        await conn.execute("CREATE TABLE written (x int)")


async def test_the_timeline_is_the_new_one_before_the_first_checkpoint_on_it(on_postgres: PostgresReplicated) -> None:
    """Regression: the control file still names the old timeline then, and tokens would go back."""
    before = await on_postgres.a_term()
    await on_postgres.caught_up()
    await on_postgres.fail_over()
    _, grant = await on_postgres.leading("a")
    assert grant.timeline == before.timeline + 1
    control = "SELECT timeline_id FROM pg_control_checkpoint()"
    assert await asyncio.to_thread(query, on_postgres.dsn, control) == [(before.timeline,)]


def _keys(election: Replicated) -> tuple[int, int]:
    return election.key.key1, election.key.key2
