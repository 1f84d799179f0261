"""What a user imports: the list is deliberate and sorted, and everything on it is documented."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import pgelect
from pgelect import errors

SURFACE = [
    "Backend",
    "Bound",
    "Bounds",
    "ChangeKind",
    "ConfigurationError",
    "ConnectionError",
    "DecorrelatedJitter",
    "ExponentialBackoff",
    "FenceBusyError",
    "FixedInterval",
    "ForkedError",
    "GroupState",
    "Health",
    "KeyCollisionError",
    "LeaderGroup",
    "LeaderLock",
    "LeaderRecord",
    "LeadershipChange",
    "LockError",
    "LockKey",
    "LockState",
    "NotLeaderError",
    "NotPrimaryError",
    "PgElectError",
    "PoolerError",
    "RetryContext",
    "RetryStrategy",
    "SchemaError",
    "SessionLostError",
    "ShutdownError",
    "StaleTokenError",
    "Term",
    "TermEnding",
    "TermRecord",
    "UnsupportedServerError",
    "get_history",
    "get_leader",
    "guard_table",
    "install",
    "list_leaders",
    "observe",
    "request_step_down",
    "schema_sql",
    "schema_version",
    "unguard_table",
]


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """What a class of ours shows to users: methods, properties, class methods; inherited ones too."""
    ours = [vars(base) for base in reversed(kind.__mro__) if base.__module__.startswith("pgelect")]
    for name, value in {name: value for base in ours for name, value in base.items()}.items():
        if name.startswith("_"):
            continue
        if isinstance(value, staticmethod | classmethod):
            yield name, value.__func__
        elif inspect.isfunction(value) or isinstance(value, property):
            yield name, value


DOCUMENTED = [
    pytest.param(value, id=name if owner is None else f"{owner}.{name}")
    for owner, name, value in [
        *((None, name, getattr(pgelect, name)) for name in SURFACE),
        *(
            (name, member, value)
            for name in SURFACE
            if inspect.isclass(getattr(pgelect, name))
            for member, value in members(getattr(pgelect, name))
        ),
    ]
]


def test_the_list_is_what_it_is_meant_to_be_and_sorted() -> None:
    assert pgelect.__all__ == SURFACE
    assert sorted(SURFACE) == SURFACE


def test_everything_on_the_list_is_there_and_nothing_else_that_looks_public() -> None:
    there = {name for name in vars(pgelect) if not name.startswith("_")}
    submodules = {name for name, value in vars(pgelect).items() if inspect.ismodule(value)}
    assert there - submodules == set(SURFACE)


def test_submodules_on_the_surface_are_those_that_users_may_name() -> None:
    assert {module.__name__ for module in (pgelect.errors, pgelect.fencing, pgelect.lock, pgelect.retry)} == {
        f"pgelect.{name}" for name in ("errors", "fencing", "lock", "retry")
    }


@pytest.mark.parametrize("value", DOCUMENTED)
def test_every_public_object_has_a_docstring_of_its_own(value: Any) -> None:
    if inspect.isclass(value):
        own = vars(value).get("__doc__")
        assert own, "an inherited docstring says something else"
        assert not own.startswith(f"{value.__name__}("), "the one that dataclass makes says nothing"
    else:
        own = (value.fget if isinstance(value, property) else value).__doc__
        assert own
    assert own.strip().splitlines()[0].rstrip().endswith((".", ":", "``", ")"))


def test_every_public_exception_is_under_the_one_base_and_all_of_them_are_public() -> None:
    classes = {name: value for name in SURFACE if inspect.isclass(value := getattr(pgelect, name))}
    public = {name for name, value in classes.items() if issubclass(value, BaseException)}
    assert public == set(errors.__all__)
    assert all(issubclass(getattr(pgelect, name), pgelect.PgElectError) for name in public)


def test_every_public_exception_stands_in_the_tree_of_the_docstring_under_its_base() -> None:
    """The tree of the module is what a user reads: its shape must be the classes' own."""
    tree = (errors.__doc__ or "").split("PgElectError\n", 1)[1].split("\n\n")[0].splitlines()
    shown: dict[str, str] = {}
    parents = {0: "PgElectError"}
    for line in tree:
        name = line.lstrip("│├└─ ").split()[0]
        depth = line.index(name) // 4 - 1
        shown[name] = parents[depth - 1]
        parents[depth] = name
    classes = {name: getattr(errors, name).__bases__[0].__name__ for name in errors.__all__ if name != "PgElectError"}
    assert shown == classes


def test_every_public_function_and_method_is_annotated() -> None:
    """mypy checks the package; this holds for what a user's editor shows."""
    bare = []
    for param in DOCUMENTED:
        value: Any = param.values[0]
        function = value.fget if isinstance(value, property) else value
        if inspect.isfunction(function) and "return" not in function.__annotations__:
            bare.append(param.id)
    assert bare == []
