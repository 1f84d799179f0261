"""The exception tree: its shape, the fields that each error carries, and messages that name the next step."""

import inspect

import pytest

from pgelect import errors
from pgelect._engine.model import LockKey, LockState
from pgelect.errors import PgElectError

KEY = LockKey(7, -8, "billing")
CAUSE = OSError("no route to host")

# the error; its fields; words of its message: what happened, and what to do now
CASES: list[tuple[PgElectError, dict[str, object], list[str]]] = [
    (
        errors.ConnectionError(3, CAUSE),
        {"attempts": 3, "last_error": CAUSE},
        ["gave up after 3 attempt", "no route to host", "call start() again"],
    ),
    (
        errors.ConnectionError(1, None),
        {"attempts": 1, "last_error": None},
        ["gave up after 1 attempt", "held by another process", "call start() again"],
    ),
    (
        errors.SessionLostError("timeout", "the server did not answer within 2 s"),
        {"reason": "timeout", "detail": "the server did not answer within 2 s"},
        ["did not answer within 2 s"],
    ),
    (errors.LockError(KEY), {"key": KEY}, ["'billing' (7, -8)", "did not hold", "the session has been closed"]),
    (
        errors.FenceBusyError(KEY, (11, 12)),
        {"key": KEY, "blockers": (11, 12)},
        ["fence_busy", "11, 12", "pg_terminate_backend"],
    ),
    (
        errors.FenceBusyError(KEY, ()),
        {"key": KEY, "blockers": ()},
        ["not visible to this role", "pg_terminate_backend"],
    ),
    (
        errors.ShutdownError(2.5, "the duty"),
        {"timeout_s": 2.5, "waiting_for": "the duty"},
        ["2.5 s", "the duty", "the lock is free", "allow more"],
    ),
    (
        errors.StaleTokenError(KEY, 41),
        {"key": KEY, "token": 41},
        ["token 41", "stale", "Nothing was written", "Stop the work"],
    ),
    (
        errors.NotLeaderError(KEY, LockState.FOLLOWER),
        {"key": KEY, "state": LockState.FOLLOWER},
        ["does not lead", "follower", "wait_for_leadership()"],
    ),
    (
        errors.NotLeaderError(KEY, LockState.STOPPED, "call start() first"),
        {"key": KEY, "state": LockState.STOPPED},
        ["does not lead", "stopped", "call start() first"],
    ),
    (
        errors.NotPrimaryError("db1:5432"),
        {"server": "db1:5432"},
        ["db1:5432", "standby", "target_session_attrs=primary"],
    ),
    (errors.ForkedError(99), {"owner_pid": 99}, ["process 99", "Make a new LeaderLock"]),
    (errors.ConfigurationError("give name or key1 and key2"), {}, ["give name"]),
    (errors.PoolerError("transaction"), {"mode": "transaction"}, ["transaction mode", "allow_pooler=True"]),
    (
        errors.SchemaError("the schema is missing", "CREATE SCHEMA pgelect"),
        {"sql": "CREATE SCHEMA pgelect"},
        ["the schema is missing", "CREATE SCHEMA pgelect", "administrator"],
    ),
    (
        errors.KeyCollisionError(KEY, "billing", "mail"),
        {"key": KEY, "name": "billing", "other_name": "mail"},
        ["'billing'", "'mail'", "(7, -8)", "Choose another name"],
    ),
    (
        errors.UnsupportedServerError(130012),
        {"server_version": 130012},
        ["13.12", "PostgreSQL 14", "Upgrade"],
    ),
]
IDS = [f"{type(error).__name__}-{n}" for n, (error, _, _) in enumerate(CASES)]


@pytest.mark.parametrize(("error", "fields", "words"), CASES, ids=IDS)
def test_an_error_carries_its_fields_and_says_what_to_do(
    error: PgElectError, fields: dict[str, object], words: list[str]
) -> None:
    assert {name: getattr(error, name) for name in fields} == fields
    assert [word for word in words if word not in str(error)] == []


def test_a_busy_fence_names_a_few_of_many_blockers_and_carries_them_all() -> None:
    """Holds off a text that grows with the number of sessions of the database."""
    error = errors.FenceBusyError(KEY, tuple(range(1000, 3000)))
    assert error.blockers == tuple(range(1000, 3000))
    assert "(pid 1000, 1001, 1002, 1003, 1004 and 1995 more)" in str(error)
    assert len(str(error)) < 300


def test_every_error_of_the_module_is_tried_above() -> None:
    tried = {type(error).__name__ for error, _, _ in CASES}
    assert tried == set(errors.__all__) - {"PgElectError"}


def test_every_error_is_under_the_one_base_and_exported() -> None:
    defined = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert defined == set(errors.__all__)
    assert all(issubclass(getattr(errors, name), PgElectError) for name in defined)


def test_exactly_the_mistakes_that_time_does_not_mend_are_configuration_errors() -> None:
    mistakes = {name for name in errors.__all__ if issubclass(getattr(errors, name), errors.ConfigurationError)}
    assert mistakes == {
        "ConfigurationError",
        "KeyCollisionError",
        "PoolerError",
        "SchemaError",
        "UnsupportedServerError",
    }


def test_every_error_is_named_in_the_tree_of_the_docstring() -> None:
    assert errors.__doc__ is not None
    assert [name for name in errors.__all__ if name not in errors.__doc__] == []


def test_no_error_is_caught_by_a_handler_for_the_builtin_of_the_same_name() -> None:
    assert not issubclass(errors.ConnectionError, OSError)
