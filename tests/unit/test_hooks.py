"""How many arguments a callback gets: as many as it requires, whatever kind of callable it is."""

import functools
import inspect
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from pgelect import LeaderLock
from pgelect._engine.hooks import Hook, wanted_arguments


def none() -> None: ...
def one(term: object) -> None: ...
def two(before: object, after: object) -> None: ...
def three(a: object, b: object, c: object) -> None: ...
def optional(term: object = None) -> None: ...
def one_and_optional(before: object, after: object = None) -> None: ...
def any_number(*told: object) -> None: ...
def one_and_any_number(before: object, *rest: object) -> None: ...
def positional_only(term: object, /) -> None: ...
def keyword_with_default(*, loud: bool = False) -> None: ...
def keyword_only(*, loud: bool) -> None: ...
def any_keywords(**told: object) -> None: ...
async def async_one(term: object) -> None: ...


class Object:
    def __call__(self, term: object) -> None: ...

    def method(self, before: object, after: object) -> None: ...

    @classmethod
    def class_method(cls, term: object) -> None: ...

    @staticmethod
    def static_method(term: object) -> None: ...


class Made:
    def __init__(self, term: object) -> None: ...


class AsyncObject:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("callback", "wanted"),
    [
        (none, 0),
        (one, 1),
        (two, 2),
        (optional, 0),
        (one_and_optional, 1),
        (any_number, 2),
        (one_and_any_number, 2),
        (positional_only, 1),
        (keyword_with_default, 0),
        (any_keywords, 0),
        (async_one, 1),
        (lambda: None, 0),
        (lambda term: term, 1),
        (Object(), 1),
        (AsyncObject(), 0),
        (Object().method, 2),
        (Object.class_method, 1),
        (Object.static_method, 1),
        (Made, 1),
        (functools.partial(two, "bound"), 1),
        (functools.partial(two, after="bound"), 1),
        (functools.partial(async_one, "bound"), 0),
        (functools.partial(keyword_only, loud=True), 0),
        ([].append, 1),
        (Mock(), 2),
        (AsyncMock(), 2),
    ],
)
def test_a_callback_gets_what_it_requires(callback: Callable[..., object], wanted: int) -> None:
    assert wanted_arguments(callback, 2, "on_state_change") == wanted


def has_no_signature(callback: Callable[..., object]) -> bool:
    try:
        inspect.signature(callback)
    except ValueError:
        return True
    return False


def test_a_callable_without_a_signature_gets_all() -> None:
    candidates: list[Callable[..., object]] = [type, max, min, dict, int]
    in_c = next(candidate for candidate in candidates if has_no_signature(candidate))
    assert [wanted_arguments(in_c, offered, "on_lost") for offered in (1, 2)] == [1, 2]


@pytest.mark.parametrize("callback", [None, 5, "on_lost", object()])
def test_what_cannot_be_called_is_refused_by_the_name_of_its_hook(callback: Any) -> None:
    with pytest.raises(TypeError, match=rf"^on_lost needs a callable, not {type(callback).__name__}$"):
        wanted_arguments(callback, 1, "on_lost")


@pytest.mark.parametrize(
    ("callback", "offered"), [(two, 1), (three, 2), (keyword_only, 2), (functools.partial(three, 1), 1)]
)
def test_a_callback_that_requires_more_than_there_is_is_refused_at_once(
    callback: Callable[..., object], offered: int
) -> None:
    with pytest.raises(TypeError, match=rf"^on_lost offers {offered} positional argument\(s\); .* requires more"):
        wanted_arguments(callback, offered, "on_lost")


@pytest.mark.parametrize("hook", Hook)
def test_every_hook_is_a_decorator_of_the_lock_and_refuses_what_does_not_fit_there(hook: Hook) -> None:
    lock = LeaderLock(key1=1, key2=2)
    register = getattr(lock, hook.label)
    assert register(any_number) is any_number
    assert hook.arity == (2 if hook is Hook.STATE_CHANGE else 1)
    for callback in (three, keyword_only, None):
        with pytest.raises(TypeError, match=rf"^{hook.label} "):
            register(callback)
    assert lock._runner.dispatcher._callbacks[hook] == [(any_number, hook.arity)]
