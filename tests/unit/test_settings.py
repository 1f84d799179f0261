"""The settings: each is checked by name, alone and against the others; and what follows from them."""

import math
from typing import Any

import pytest

from pgelect._engine.model import LockKey
from pgelect._engine.settings import (
    LEASE_MAX_S,
    LEASE_MIN_S,
    Settings,
    check_argument_s,
    default_identity,
    key_of,
)
from pgelect._engine.state import Rules

KEY = LockKey(5001, 1)
DURATIONS = [
    "health_interval_s",
    "health_timeout_s",
    "lease_s",
    "reconnect_grace_s",
    "takeover_delay_s",
    "drain_timeout_s",
]
OPTIONAL = {"health_timeout_s", "reconnect_grace_s"}


def make(**settings: Any) -> Settings:
    return Settings(**{"key": KEY, "identity": "test", **settings})


# Each alone


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [-0.001, -1, math.nan, math.inf, -math.inf])
def test_a_duration_that_is_no_finite_time_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{name}={value} must be a finite number of seconds, 0 or more$"):
        make(**{name: value})


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [True, "5", b"5", [5], 5 + 0j])
def test_a_duration_that_is_no_number_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"^{name} must be a number of seconds, not {type(value).__name__}$"):
        make(**{name: value})


@pytest.mark.parametrize("name", DURATIONS)
def test_none_stands_only_for_a_duration_that_has_a_meaning_for_it(name: str) -> None:
    if name in OPTIONAL:
        make(**{name: None})
    else:
        with pytest.raises(TypeError, match=rf"^{name} must be a number of seconds, not NoneType$"):
            make(**{name: None})


@pytest.mark.parametrize("name", DURATIONS)
def test_a_whole_number_beyond_all_floats_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}"):
        make(**{name: 10**400})


def test_whole_numbers_are_seconds_too() -> None:
    settings = make(health_interval_s=1, lease_s=3, drain_timeout_s=0)
    assert (settings.health_interval_s, settings.lease_s, settings.drain_timeout_s) == (1, 3, 0)


@pytest.mark.parametrize("name", ["health_interval_s", "health_timeout_s"])
def test_a_proof_cannot_be_due_or_time_out_at_once(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be greater than 0"):
        make(**{name: 0})


@pytest.mark.parametrize("name", ["reconnect_grace_s", "takeover_delay_s", "drain_timeout_s"])
def test_no_grace_no_delay_and_no_drain_are_fine(name: str) -> None:
    assert getattr(make(**{name: 0}), name) == 0


@pytest.mark.parametrize("lease_s", [0.0, LEASE_MIN_S - 0.01, LEASE_MAX_S + 1])
def test_a_lease_that_the_server_cannot_keep_is_refused(lease_s: float) -> None:
    with pytest.raises(ValueError, match=r"^lease_s=.* is outside 0.2 .. 2e\+06 seconds$"):
        make(lease_s=lease_s)


@pytest.mark.parametrize("lease_s", [LEASE_MIN_S, LEASE_MAX_S])
def test_the_shortest_and_the_longest_lease_are_fine(lease_s: float) -> None:
    assert make(lease_s=lease_s, health_interval_s=0.05).lease_s == lease_s


@pytest.mark.parametrize("acquire", ["", "wait", "QUEUE", None, 1])
def test_any_other_way_of_acquiring_is_refused(acquire: object) -> None:
    with pytest.raises(ValueError, match=r"^acquire=.* is neither 'queue' nor 'poll'$"):
        make(acquire=acquire)


@pytest.mark.parametrize("identity", ["", "a\0b", "a\ud800"])
def test_an_identity_that_cannot_be_stored_is_refused(identity: str) -> None:
    with pytest.raises(ValueError, match=r"^identity "):
        make(identity=identity)


@pytest.mark.parametrize("identity", [7, b"me", ["me"]])
def test_an_identity_that_is_no_text_is_refused_by_name(identity: object) -> None:
    with pytest.raises(TypeError, match=r"identity"):
        make(identity=identity)


# Metadata


@pytest.mark.parametrize("metadata", [{"a": math.nan}, {"a": object()}, {"a": {1, 2}}, {(1, 2): 3}, {"a": b"x"}])
def test_metadata_that_json_cannot_carry_is_refused(metadata: dict[Any, Any]) -> None:
    with pytest.raises(ValueError, match=r"^metadata must be a mapping that JSON can carry: "):
        make(metadata=metadata)


def test_metadata_that_contains_itself_is_refused() -> None:
    metadata: dict[str, Any] = {}
    metadata["self"] = metadata
    with pytest.raises(ValueError, match=r"^metadata must be a mapping that JSON can carry: "):
        make(metadata=metadata)


def test_metadata_of_too_great_a_depth_is_refused() -> None:
    metadata: dict[str, Any] = {}
    for _ in range(5000):
        metadata = {"a": metadata}
    with pytest.raises(ValueError, match=r"^metadata must be a mapping that JSON can carry: "):
        make(metadata=metadata)


@pytest.mark.parametrize("metadata", [[1], "text", 7])
def test_metadata_that_is_no_mapping_is_refused(metadata: object) -> None:
    with pytest.raises(TypeError, match=r"^metadata must be a mapping, not (list|str|int)$"):
        make(metadata=metadata)


@pytest.mark.parametrize("metadata", [{"a": "x\0y"}, {"a\0": 1}, {"a": [{"b": "\0"}]}])
def test_metadata_that_postgresql_cannot_store_is_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^metadata must not contain a NUL character"):
        make(metadata=metadata)


@pytest.mark.parametrize("metadata", [{"a": "\ud800"}, {"\udfff": 1}])
def test_metadata_with_half_a_character_is_refused(metadata: dict[str, Any]) -> None:
    """The server would refuse it at every minting: the lock would try for ever."""
    with pytest.raises(ValueError, match=r"^metadata "):
        make(metadata=metadata)


def test_a_backslash_in_metadata_is_no_nul_character() -> None:
    assert make(metadata={"path": "C:\\u0000"}).metadata == {"path": "C:\\u0000"}


def test_metadata_is_what_json_makes_of_it_and_cannot_be_changed_afterwards() -> None:
    given: dict[Any, Any] = {"zone": ("a", "b"), 1: None}
    settings = make(metadata=given)
    given["zone"] = ()
    assert settings.metadata == {"zone": ["a", "b"], "1": None}
    with pytest.raises(TypeError):
        settings.metadata["zone"] = 1  # type: ignore[index]  # this is what must not work


# Against each other


def test_a_proof_and_its_timeout_must_fit_into_the_lease_and_all_three_are_named() -> None:
    with pytest.raises(ValueError, match="do not fit into lease_s") as caught:
        make(health_interval_s=5.0, health_timeout_s=10.0, lease_s=15.0)
    text = str(caught.value)
    assert "health_interval_s (5) + health_timeout_s (10) + a margin (0.75) = 15.75" in text
    assert "lease_s (15)" in text
    assert "Lower health_interval_s or health_timeout_s, or raise lease_s" in text


def test_exactly_as_long_as_the_lease_fits() -> None:
    settings = make(health_interval_s=5.0, health_timeout_s=9.25, lease_s=15.0)
    assert settings.health_interval_s + settings.proof_timeout_s == settings.trust_s


def test_an_interval_that_leaves_no_time_for_a_proof_is_refused_without_a_timeout_too() -> None:
    with pytest.raises(ValueError, match=r"health_interval_s \(14\.24\) \+ health_timeout_s \(0\.02\)"):
        make(health_interval_s=14.24)
    assert make(health_interval_s=14.2).proof_timeout_s == pytest.approx(0.05)


def test_a_grace_needs_fencing() -> None:
    with pytest.raises(ValueError, match=r"^reconnect_grace_s needs fencing=True"):
        make(reconnect_grace_s=5.0, fencing=False)
    make(reconnect_grace_s=0, fencing=False)
    make(reconnect_grace_s=None, fencing=False)


# What follows


def test_a_proof_may_take_as_long_as_the_lease_allows_by_default() -> None:
    assert make().proof_timeout_s == 15.0 - 0.75 - 5.0
    assert make(lease_s=30.0).proof_timeout_s == 30.0 - 1.5 - 5.0
    assert make(health_timeout_s=2.0).proof_timeout_s == 2.0


@pytest.mark.parametrize(("lease_s", "margin_s"), [(15.0, 0.75), (100.0, 5.0), (1.0, 0.05), (0.2, 0.05)])
def test_the_margin_is_a_twentieth_of_the_lease_and_at_least_50_ms(lease_s: float, margin_s: float) -> None:
    settings = make(lease_s=lease_s, health_interval_s=0.1)
    assert settings.margin_s == pytest.approx(margin_s)
    assert settings.trust_s == pytest.approx(lease_s - margin_s)


def test_the_machine_gets_its_rules() -> None:
    settings = make(reconnect_grace_s=6.0, takeover_delay_s=2.0, acquire="poll", auto_reacquire=False)
    assert settings.rules == Rules(
        key=KEY,
        trust_s=14.25,
        health_interval_s=5.0,
        reconnect_grace_s=6.0,
        takeover_delay_s=2.0,
        queue=False,
        auto_reacquire=False,
    )
    assert make(reconnect_grace_s=None).rules.reconnect_grace_s == 0.0


# Durations given to methods, keys, identities


@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_a_duration_given_to_a_method_is_checked_by_name(value: float) -> None:
    with pytest.raises(ValueError, match=r"^timeout_s="):
        check_argument_s("timeout_s", value)


@pytest.mark.parametrize("value", [None, True, "1"])
def test_a_method_takes_nothing_but_numbers(value: float) -> None:
    with pytest.raises(TypeError, match=r"^timeout_s must be a number of seconds"):
        check_argument_s("timeout_s", value)


def test_a_good_duration_comes_back() -> None:
    assert check_argument_s("timeout_s", 1.5) == 1.5


@pytest.mark.parametrize(("key1", "key2"), [(1, 2), (0, 0), (-(2**31), 2**31 - 1)])
def test_a_pair_of_numbers_is_a_key(key1: int, key2: int) -> None:
    assert key_of(key1, key2, None) == LockKey(key1, key2)


def test_a_name_is_a_key() -> None:
    key = key_of(None, None, "billing/scheduler")
    assert (key, key.name) == (LockKey.from_name("billing/scheduler"), "billing/scheduler")


def test_two_default_identities_differ_within_one_process() -> None:
    assert default_identity() != default_identity()
