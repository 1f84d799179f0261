"""Calls of onlookers with arguments that cannot be right are refused before anything connects."""

from collections.abc import Callable
from typing import Any

import pytest

from pgelect.observe import get_history, get_leader, list_leaders, observe, request_step_down

DSN = "host=127.0.0.1 port=1 connect_timeout=2"
KEYS: list[tuple[Any, type[Exception], str]] = [
    ("", ValueError, "name must not be empty"),
    ("a\0b", ValueError, "NUL"),
    ("\ud800", ValueError, r"name '\\ud800' is not text in UTF-8"),
    (7, TypeError, "key must be the name of a lock, a LockKey or a pair"),
    (None, TypeError, "key must be"),
    ((1,), TypeError, "key must be"),
    ((1, 2, 3), TypeError, "key must be"),
    (("1", 2), TypeError, "key1 must be an int"),
    ((True, 2), TypeError, "key1 must be an int"),
    ((2**31, 2), ValueError, "outside the signed 32-bit range"),
]


@pytest.mark.parametrize("call", [get_leader, get_history, request_step_down])
@pytest.mark.parametrize(("key", "kind", "text"), KEYS)
async def test_a_key_that_is_none(call: Callable[..., Any], key: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        await call(DSN, key)


@pytest.mark.parametrize(("key", "kind", "text"), [bad for bad in KEYS if bad[0] is not None])
def test_observe_refuses_it_before_the_iteration_begins(key: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        observe(DSN, key)


@pytest.mark.parametrize(("server", "kind"), [(None, TypeError), (b"", TypeError), ("not a dsn", ValueError)])
async def test_a_server_that_is_none(server: Any, kind: type[Exception]) -> None:
    for call in (get_leader(server, "x"), list_leaders(server), get_history(server, "x")):
        with pytest.raises(kind):
            await call
    with pytest.raises(kind):
        observe(server)


@pytest.mark.parametrize(("limit", "kind"), [(0, ValueError), (-1, ValueError), (True, TypeError), (1.0, TypeError)])
async def test_a_limit_that_is_none(limit: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="limit"):
        await get_history(DSN, "x", limit=limit)


@pytest.mark.parametrize(("token", "kind"), [(0, ValueError), (-1, ValueError), (2**63, ValueError), ("1", TypeError)])
async def test_a_token_that_is_none(token: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="token"):
        await request_step_down(DSN, "x", token)


@pytest.mark.parametrize(
    ("seconds", "kind"),
    [
        (0, ValueError),
        (0.04, ValueError),
        (3601, ValueError),
        (float("nan"), ValueError),
        (True, TypeError),
        ("2", TypeError),
    ],
)
def test_looks_that_are_too_often_too_rare_or_no_number(seconds: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="look_every_s"):
        observe(DSN, look_every_s=seconds)
