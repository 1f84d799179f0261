"""pgelect.sync has what pgelect has: the same names, the same parameters, the same settings."""

import inspect
from typing import Any

import pytest

import pgelect
from pgelect import sync
from pgelect._group_settings import BlockingGroupSettings, GroupSettings
from pgelect._sync_settings import LockSettings

ONLY_ASYNC = {"shutdown_event"}  # an asyncio.Event
ONLY_SYNC = {"lead": ["max_workers=None"]}  # of a group: handlers are threads here
BLOCK = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


def parameters(function: Any) -> list[str]:
    return [f"{each.name}={each.default}" for each in inspect.signature(function).parameters.values()]


def public(kind: type) -> set[str]:
    names = {name for name, _ in inspect.getmembers(kind)}
    return {BLOCK.get(name, name) for name in names if name in {*BLOCK, *BLOCK.values()} or not name.startswith("_")}


def test_the_lock_has_the_same_members() -> None:
    assert public(sync.LeaderLock) == public(pgelect.LeaderLock)


@pytest.mark.parametrize("name", sorted(public(pgelect.LeaderLock) - set(BLOCK.values())))
def test_each_takes_the_same_arguments_and_says_what_it_does(name: str) -> None:
    ours, theirs = getattr(sync.LeaderLock, name), getattr(pgelect.LeaderLock, name)
    assert isinstance(ours, property) == isinstance(theirs, property)
    assert inspect.getdoc(ours)
    if not isinstance(ours, property):
        assert parameters(ours) == parameters(theirs)
        assert not inspect.iscoroutinefunction(ours)


def test_the_group_has_the_same_members() -> None:
    assert public(sync.LeaderGroup) == public(pgelect.LeaderGroup)


@pytest.mark.parametrize("name", sorted(public(pgelect.LeaderGroup) - set(BLOCK.values())))
def test_each_of_a_group_takes_the_same_arguments_and_says_what_it_does(name: str) -> None:
    ours, theirs = getattr(sync.LeaderGroup, name), getattr(pgelect.LeaderGroup, name)
    assert isinstance(ours, property) == isinstance(theirs, property)
    assert inspect.getdoc(ours)
    if not isinstance(ours, property):
        assert parameters(ours) == parameters(theirs) + ONLY_SYNC.get(name, [])
        assert not inspect.iscoroutinefunction(ours)


def test_the_group_takes_the_same_settings() -> None:
    assert parameters(sync.LeaderGroup) == parameters(pgelect.LeaderGroup)
    assert set(GroupSettings.__annotations__) - ONLY_ASYNC == set(BlockingGroupSettings.__annotations__)


def test_the_lock_takes_the_same_settings() -> None:
    keywords = [
        each.name
        for each in inspect.signature(pgelect.LeaderLock).parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.name not in ONLY_ASYNC
    ]
    assert list(LockSettings.__annotations__) == keywords


def test_a_term_tells_the_same() -> None:
    assert public(sync.Term) - {"of"} == public(pgelect.Term)
