"""What a user calls the partitions of a group, and the keys of their locks."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pgelect._engine.model import LockKey

if TYPE_CHECKING:
    from collections.abc import Iterable


def partitions_of(names: Iterable[str] | None, keys: Iterable[tuple[int, int]] | None) -> dict[LockKey, Any]:
    """Make the keys of the partitions, each with what the user calls it.

    Raises:
        ValueError, TypeError: none, both kinds, or two that are the same.
    """
    if (names is None) == (keys is None):
        raise ValueError("a group needs either names or keys")
    if isinstance(names, str):
        raise TypeError("names must be several strings, such as a list of them, not one string")
    given: list[Any] = list(names if names is not None else keys or ())
    if not given:
        raise ValueError("a group needs at least one partition")
    found: dict[LockKey, Any] = {}
    for partition in given:
        if isinstance(partition, str) is (names is None):
            raise TypeError(f"{partition!r} is not a {'pair of numbers' if names is None else 'name'}")
        key = key_of(partition)
        if key in found:
            raise ValueError(f"{found[key]!r} and {partition!r} are the same partition")
        found[key] = partition
    return found


def key_of(partition: Any) -> LockKey:
    """Make the key of one.

    Raises:
        ValueError, TypeError: it is no partition.
    """
    if isinstance(partition, str):
        return LockKey.from_name(partition)
    if not isinstance(partition, tuple) or len(partition) != 2:
        raise TypeError(f"{partition!r} is not a pair of numbers: a tuple of two")
    return LockKey(*partition)


def group_name(name: object, partitions: Iterable[LockKey]) -> str:
    """Give the name of the group: that, or one made of its partitions.

    Raises:
        ValueError, TypeError: it is no name.
    """
    if name is None:
        pairs = sorted((key.key1, key.key2) for key in partitions)
        return f"group {sha256(repr(pairs).encode()).hexdigest()[:12]}"
    try:
        LockKey.from_name(name)  # type: ignore[arg-type]  # checks it
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("name", "group", 1)) from None
    return str(name)
