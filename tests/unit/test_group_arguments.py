"""What a group cannot be made with, and that each error names the argument."""

import re
from typing import Any

import pytest

from pgelect import LeaderGroup

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, ValueError, "a group needs either names or keys"),
    ({"names": ["a"], "keys": [(1, 2)]}, ValueError, "a group needs either names or keys"),
    ({"names": []}, ValueError, "a group needs at least one partition"),
    ({"names": "abc"}, TypeError, "names must be several strings, such as a list of them, not one string"),
    ({"names": ["a", 1]}, TypeError, "1 is not a name"),
    ({"names": ["a", "a"]}, ValueError, "'a' and 'a' are the same partition"),
    ({"names": ["\0"]}, ValueError, "name must not contain a NUL character: PostgreSQL cannot store it"),
    ({"keys": ["a"]}, TypeError, "'a' is not a pair of numbers"),
    ({"keys": [[1, 2]]}, TypeError, "[1, 2] is not a pair of numbers: a tuple of two"),
    ({"keys": [(1, 2, 3)]}, TypeError, "(1, 2, 3) is not a pair of numbers: a tuple of two"),
    ({"keys": [(1, "2")]}, TypeError, "key2 must be an int, not str"),
    (
        {"keys": [(1, 2**31)]},
        ValueError,
        "key2=2147483648 is outside the signed 32-bit range -2147483648 .. 2147483647",
    ),
    ({"names": ["a"], "group": ""}, ValueError, "group must not be empty"),
    ({"names": ["a"], "group": 5}, TypeError, "group must be a str, not int"),
    ({"names": ["a"], "max_share": -1}, ValueError, "max_share=-1 must be 0 or more"),
    ({"names": ["a"], "max_share": 1.5}, TypeError, "max_share must be a number of partitions, not float"),
    ({"names": ["a"], "weight": 0}, ValueError, "weight=0 is outside 1e-06 .. 1e+06"),
    ({"names": ["a"], "weight": float("nan")}, ValueError, "weight=nan is outside 1e-06 .. 1e+06"),
    ({"names": ["a"], "weight": True}, TypeError, "weight must be a number, not bool"),
    ({"names": ["a"], "rebalance_interval_s": 0}, ValueError, "rebalance_interval_s must be greater than 0"),
    ({"names": ["a"], "shutdown_event": object()}, TypeError, "shutdown_event must be an asyncio.Event, not object"),
    ({"names": ["a"], "reconnect_grace_s": 1}, TypeError, "LeaderGroup has no setting 'reconnect_grace_s'"),
]


@pytest.mark.parametrize(("arguments", "kind", "words"), WRONG)
def test_what_is_wrong_is_refused_by_name(arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(words)}$"):
        LeaderGroup(**arguments)


def test_numbers_below_zero_and_names_in_any_script_are_partitions() -> None:
    keys = [(-(2**31), 2**31 - 1), (0, 0), (-1, -1)]
    assert LeaderGroup(keys=iter(keys), group="Größe 💶").partitions == tuple(keys)
    assert LeaderGroup(names={"Zürich": 1, "東京": 2}).partitions == ("Zürich", "東京")
