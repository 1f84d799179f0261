"""A look that falls into a handover: rows are of a snapshot, and locks of the moment at which they are read."""

from typing import Any

import pytest
from psycopg.sql import Composable

from pgelect import LockKey
from pgelect._postgres.observing import Here, look

PRIMARY = Here("app", False, 1, usage=True, may_read=True, may_ask=None)
STANDBY = Here("app", True, 1, usage=True, may_read=True, may_ask=None)
T0 = 1_800_000_000_000_000


def row(token: int, *, alive: bool, released: int | None = None) -> list[Any]:
    now = [alive, "10.0.0.1", "pgelect:x", "app", T0 + 5, 2]
    return [1, -2, None, token, "a", {}, T0, released, token, 15, 100, T0, *now]


class Server:
    """Answers one look after another."""

    def __init__(self, *looks: list[list[Any]] | None) -> None:
        self.looks = list(looks)

    async def ask(self, query: Composable) -> list[list[Any]] | None:
        return self.looks.pop(0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (row(7, alive=False), row(7, alive=False, released=T0 + 1)),  # given up between snapshot and locks
        (row(7, alive=False), row(8, alive=True)),  # changed hands
        (row(7, alive=False), row(7, alive=False)),  # it really is lost
    ],
)
async def test_what_looks_lost_is_looked_at_again(first: list[Any], second: list[Any]) -> None:
    """Regression: a lock that was given up cleanly was told as lost when the look fell into the release."""
    server = Server([first], [second])
    (record,) = await look(server.ask, PRIMARY, LockKey(1, -2))
    assert server.looks == []
    assert (record.token, record.alive, record.released_at is not None) == (
        second[3],
        second[12],
        second[7] is not None,
    )


@pytest.mark.parametrize("answer", [None, [row(7, alive=True)], [row(7, alive=False, released=T0 + 1)]])
async def test_anything_else_is_looked_at_once(answer: list[list[Any]] | None) -> None:
    server = Server(answer, [])
    assert len(await look(server.ask, PRIMARY, None)) == len(answer or [])
    assert server.looks == [[]]


async def test_of_a_standby_it_is_not_known_who_holds_a_lock() -> None:
    server = Server([row(7, alive=False)], [])
    (record,) = await look(server.ask, STANDBY, None)
    assert (record.alive, record.followers, record.client_addr, record.last_contact_at) == (None, None, None, None)
    assert server.looks == [[]]
