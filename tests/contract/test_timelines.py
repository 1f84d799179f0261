"""Tokens where the timeline of the server says little: skipped, set back by pg_upgrade, or of another server."""

import asyncio

import psycopg
import pytest

from pgelect._engine.model import LockKey
from tests.contract.replication import PostgresReplicated, Replicated
from tests.support.replication import TIMELINE
from tests.support.roles import RESTORED

RESERVED = 32  # so many numbers of a sequence each of its WAL records is ahead; a promotion goes on behind them


async def test_a_timeline_on_which_nobody_led_is_passed_over(replicated: Replicated) -> None:
    first = await replicated.a_term()
    await replicated.hold_back()
    await replicated.use_up(2 * RESERVED)
    lost = await replicated.a_term()
    await replicated.fail_over()
    await replicated.rejoin()
    await replicated.fail_over()
    after = await replicated.a_term()
    assert after.token > lost.token
    assert after.timeline == first.timeline + 2
    assert after.token - _number(after.token) == (after.timeline - 1) * TIMELINE


@pytest.mark.parametrize("remembered", [False, True])
async def test_tokens_grow_over_lost_tails_though_pg_upgrade_has_set_the_timeline_back(
    replicated: Replicated, remembered: bool
) -> None:
    """Regression: the row's own part of the timeline stayed, and each lost tail had the same numbers given out again.

    The row is of a cluster that had been promoted five times more; the first term since may be in the lost tail, too.
    """
    await replicated.a_term()
    await replicated.promoted_more_often(5)
    handed_out = [(await replicated.last_row()).token]
    if remembered:
        handed_out.append((await replicated.a_term()).token)
    for _ in range(3):
        await replicated.hold_back()
        await replicated.use_up(2 * RESERVED)
        handed_out += [(await replicated.a_term()).token for _ in range(3)]
        await replicated.fail_over()
        assert (await replicated.last_row()).token < handed_out[-3], "the row has gone back"
        await replicated.rejoin()
    handed_out += [(await replicated.a_term()).token for _ in range(2)]
    assert handed_out == sorted(set(handed_out))


async def test_after_a_restored_dump_one_statement_of_an_administrator_has_tokens_grow(
    replicated_postgres: PostgresReplicated,
) -> None:
    """Rows and sequence are those of the dump, and a lock whose first term came after it has none."""
    election = replicated_postgres
    other = PostgresReplicated(LockKey(election.key.key1, election.key.key2 ^ 1), election.pair, election.dbname)
    await election.a_term()
    dumped = "CREATE TABLE dumped AS SELECT * FROM pgelect.token; SELECT last_value FROM pgelect.token_seq"
    last_value = (await asyncio.to_thread(_run, election.dsn, dumped))[0][0]
    handed_out = [(await one.a_term()).token for one in (election, other, election, other)]
    restored = "DELETE FROM pgelect.token; INSERT INTO pgelect.token SELECT * FROM dumped; SELECT setval({}, {})"
    await asyncio.to_thread(_run, election.dsn, restored.format("'pgelect.token_seq'", last_value))
    assert (await election.last_row()).token < handed_out[0]
    await asyncio.to_thread(_run, election.dsn, RESTORED)
    handed_out += [(await one.a_term()).token for one in (election, other, election, other)]
    await election.hold_back()
    handed_out += [(await one.a_term()).token for one in (election, other)]
    await election.fail_over()
    other.dsn = other._session_dsn = election.dsn
    handed_out += [(await one.a_term()).token for one in (election, other)]
    assert handed_out == sorted(set(handed_out))
    await other.close()


def _run(dsn: str, statements: str) -> list[tuple[int, ...]]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(statements.encode())
        while cursor.nextset():
            pass
        return cursor.fetchall()


def _number(token: int) -> int:
    """The part of it that came from the sequence."""
    return token % TIMELINE
