"""Settings from the environment: what is read, in which order, and that no mistake is silent or shows a password."""

import inspect
from typing import Any

import pytest

from pgelect import DecorrelatedJitter, ExponentialBackoff, FixedInterval, LeaderLock, LockKey
from pgelect._environment import SETTINGS, SUFFIXES, TOLD_BY_RUN, prefix_of, settings_from_env


def arguments(environ: dict[str, str], name: str = "invoices", **overrides: Any) -> dict[str, Any]:
    return settings_from_env(name, environ, overrides).arguments


def lock(environ: dict[str, str], name: str = "invoices", **overrides: Any) -> LeaderLock:
    """As ``LeaderLock.from_env`` does it."""
    found = settings_from_env(name, environ, overrides)
    with found.naming_variables():
        return LeaderLock(**found.arguments)


# What is read


def test_of_an_empty_environment_only_the_name_is_left() -> None:
    assert arguments({}) == {"name": "invoices"}
    assert lock({}).key == LockKey.from_name("invoices")


@pytest.mark.parametrize(
    ("suffix", "text", "value"),
    [
        ("DSN", "host=db dbname=app", "host=db dbname=app"),
        ("IDENTITY", "pod-1", "pod-1"),
        ("METADATA", '{"zone": "a"}', {"zone": "a"}),
        ("HEALTH_INTERVAL_S", "0.5", 0.5),
        ("HEALTH_TIMEOUT_S", "2", 2.0),
        ("HEALTH_TIMEOUT_S", "None", None),
        ("LEASE_S", " 30 \n", 30.0),
        ("RECONNECT_GRACE_S", "5", 5.0),
        ("RECONNECT_GRACE_S", "none", None),
        ("ACQUIRE", "Poll", "poll"),
        ("TAKEOVER_DELAY_S", "1", 1.0),
        ("DRAIN_TIMEOUT_S", "20", 20.0),
        ("AUTO_REACQUIRE", "false", False),
        ("FENCING", "0", False),
        ("FENCING", "on", True),
        ("ALLOW_POOLER", "YES", True),
    ],
)
def test_a_variable_sets_its_argument(suffix: str, text: str, value: object) -> None:
    expected: dict[str, Any] = {"name": "invoices", suffix.lower(): value}
    assert arguments({f"PGELECT_{suffix}": text}) == expected
    assert arguments({f"PGELECT_INVOICES_{suffix}": text}) == expected
    LeaderLock(**expected)  # the constructor takes it


@pytest.mark.parametrize(
    ("environ", "strategy"),
    [
        ({"RETRY_MAX_S": "9"}, ExponentialBackoff(max_s=9.0)),
        ({"RETRY": "exponential", "RETRY_BASE_S": "2", "RETRY_MAX_S": "9"}, ExponentialBackoff(2.0, 9.0)),
        ({"RETRY": "decorrelated", "RETRY_BASE_S": "2"}, DecorrelatedJitter(base_s=2.0)),
        ({"RETRY": "fixed", "RETRY_BASE_S": "2", "RETRY_MAX_S": "9"}, FixedInterval(2.0)),
        ({"RETRY": "Fixed"}, FixedInterval()),
    ],
)
def test_the_retry_strategy_is_made_of_up_to_three_variables(environ: dict[str, str], strategy: object) -> None:
    found = arguments({f"PGELECT_{suffix}": text for suffix, text in environ.items()})
    assert found == {"name": "invoices", "retry_strategy": strategy}


def test_every_argument_that_text_can_say_has_a_variable() -> None:
    """Holds off a setting that is added to the constructor and forgotten here."""
    no_text = {"name", "retry_strategy", "shutdown_event", "connect_fn", "metrics"}
    settings = {setting.argument for setting in SETTINGS} - {"retry", "retry_base_s", "retry_max_s"}
    assert settings == set(inspect.signature(LeaderLock).parameters) - no_text


# In which order


def test_the_variable_of_the_lock_goes_before_the_one_for_all() -> None:
    environ = {"PGELECT_LEASE_S": "30", "PGELECT_MY_JOB_2_LEASE_S": "40"}
    assert arguments(environ, "my-job.2")["lease_s"] == 40.0
    assert arguments(environ, "other")["lease_s"] == 30.0


def test_the_dsn_is_looked_for_in_three_places() -> None:
    environ = {"PGELECT_INVOICES_DSN": "host=a", "PGELECT_DSN": "host=b", "PG_DSN": "host=c"}
    for host in ("a", "b", "c"):
        assert arguments(environ)["dsn"] == f"host={host}"
        del environ[next(iter(environ))]
    assert "dsn" not in arguments(environ)


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_variable_counts_as_not_set(empty: str) -> None:
    """Compose and Helm templates set what has no value to nothing."""
    environ = {"PGELECT_INVOICES_LEASE_S": empty, "PGELECT_LEASE_S": "30", "PGELECT_DSN": empty, "PG_DSN": "host=c"}
    assert arguments(environ) == {"name": "invoices", "lease_s": 30.0, "dsn": "host=c"}


def test_arguments_go_before_variables() -> None:
    environ = {"PGELECT_LEASE_S": "30", "PGELECT_RETRY": "fixed"}
    strategy = FixedInterval(3.0)
    found = arguments(environ, lease_s=40.0, retry_strategy=strategy, fencing=False)
    assert found == {"name": "invoices", "lease_s": 40.0, "retry_strategy": strategy, "fencing": False}


def test_keys_take_the_place_of_the_name_and_are_of_one_lock_only() -> None:
    environ = {"PGELECT_INVOICES_KEY1": "-7", "PGELECT_INVOICES_KEY2": "8"}
    assert lock(environ).key == LockKey(-7, 8)
    assert lock({}, key1=1, key2=2).key == LockKey(1, 2)
    assert lock(environ, "other").key == LockKey.from_name("other")


def test_what_run_tells_its_command_is_no_setting_of_a_lock_in_that_command() -> None:
    """Its lock would compete with the very process that runs it, for the same key, and never lead."""
    told = {f"PGELECT_{name}": "1" for name in TOLD_BY_RUN}
    assert {"TOKEN", "KEY1", "KEY2"} <= TOLD_BY_RUN
    assert arguments(told) == {"name": "invoices"}


def test_the_variables_of_one_lock_are_never_those_of_all_locks() -> None:
    """Whatever a lock is called: no setting ends with another one."""
    assert [(a, b) for a in SUFFIXES for b in SUFFIXES if a.endswith(f"_{b}")] == []


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("a", "PGELECT_A_"), ("my-job.2", "PGELECT_MY_JOB_2_"), ("Zähler", "PGELECT_Z_HLER_"), ("x y", "PGELECT_X_Y_")],
)
def test_the_prefix_of_a_lock_is_its_name_in_capitals(name: str, prefix: str) -> None:
    assert prefix_of(name) == prefix


# What cannot be read


@pytest.mark.parametrize(
    ("suffix", "text", "said"),
    [
        ("LEASE_S", "15s", "='15s' is not a number of seconds, such as 15 or 0.5"),
        ("LEASE_S", "nan", "='nan' is not a number of seconds"),
        ("LEASE_S", "none", "='none' is not a number of seconds"),
        ("HEALTH_TIMEOUT_S", "inf", "='inf' is not a number of seconds, such as 15 or 0.5, or none"),
        ("KEY1", "1.5", "='1.5' is not a whole number"),
        ("ACQUIRE", "wait", "='wait' is not queue or poll"),
        ("FENCING", "nope", "='nope' is not true or false"),
        ("RETRY", "linear", "='linear' is not exponential, decorrelated or fixed"),
        ("METADATA", "[1]", "='[1]' is not an object in JSON"),
        ("METADATA", "{zone: a}", "='{zone: a}' is not an object in JSON"),
        ("METADATA", "{" * 5000, "{{...' is not an object in JSON"),
        ("METADATA", '{"a":' * 5000, "...' is not an object in JSON"),
        ("IDENTITY", "\udcff", "='\\udcff' is not text in UTF-8"),
    ],
)
def test_a_value_that_cannot_be_read_is_told_with_its_variable_and_what_is_allowed(
    suffix: str, text: str, said: str
) -> None:
    variable = f"PGELECT_INVOICES_{suffix}"
    with pytest.raises(ValueError, match=f"^{variable}=") as caught:
        arguments({variable: text})
    assert said in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"PGELECT_LEASE_S": "0.1"}, "lease_s=0.1 is outside 0.2 .. 2e+06 seconds (lease_s is from PGELECT_LEASE_S)"),
        (
            {"PGELECT_LEASE_S": "10", "PGELECT_INVOICES_HEALTH_INTERVAL_S": "20"},
            "(health_interval_s is from PGELECT_INVOICES_HEALTH_INTERVAL_S, lease_s is from PGELECT_LEASE_S)",
        ),
        ({"PGELECT_DRAIN_TIMEOUT_S": "-1"}, "(drain_timeout_s is from PGELECT_DRAIN_TIMEOUT_S)"),
        ({"PGELECT_INVOICES_KEY1": "1"}, "(key1 is from PGELECT_INVOICES_KEY1)"),
        ({"PGELECT_INVOICES_KEY1": "1", "PGELECT_INVOICES_KEY2": "4294967296"}, "(key2 is from PGELECT_INVOICES_KEY2)"),
        ({"PGELECT_RECONNECT_GRACE_S": "5", "PGELECT_FENCING": "no"}, "fencing is from PGELECT_FENCING"),
        ({"PGELECT_RETRY_BASE_S": "0"}, "base_s=0.0 must be a finite number greater than 0 (base_s is from PGELECT_"),
        ({"PGELECT_RETRY_BASE_S": "60"}, "(base_s is from PGELECT_RETRY_BASE_S)"),
        ({"PGELECT_RETRY": "fixed", "PGELECT_RETRY_BASE_S": "0"}, "(interval_s is from PGELECT_RETRY_BASE_S)"),
    ],
)
def test_a_value_that_the_constructor_refuses_is_told_with_its_variable(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match="is from PGELECT_") as caught:
        lock(environ)
    assert said in str(caught.value)


def test_an_argument_that_is_refused_is_not_laid_on_a_variable() -> None:
    with pytest.raises(ValueError, match=r"^lease_s=0.1 is outside [^()]*$"):
        lock({"PGELECT_LEASE_S": "30"}, lease_s=0.1)


@pytest.mark.parametrize(
    "dsn", ["postgresql://u:SECRET@h/x?nonsense=1", "password=SECRET bad", "password=SECRET\udcff"]
)
@pytest.mark.parametrize("variable", ["PGELECT_INVOICES_DSN", "PGELECT_DSN", "PG_DSN"])
def test_a_dsn_that_cannot_be_read_is_told_with_its_variable_and_without_what_it_holds(variable: str, dsn: str) -> None:
    with pytest.raises(ValueError, match=variable) as caught:
        lock({variable: dsn})
    error: BaseException | None = caught.value
    while error is not None:
        assert "SECRET" not in f"{error} {error!r} {error.args!r} {vars(error)}"
        assert not isinstance(error, UnicodeError), "it keeps what could not be encoded"
        error = error.__cause__ or error.__context__
    assert "SECRET" not in repr(settings_from_env("invoices", {variable: "password=SECRET"}))


# What looks like a setting and is none


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("PGELECT_LEASE", "PGELECT_LEASE_S"),
        ("PGELECT_LEASE_MS", "PGELECT_LEASE_S"),
        ("PGELECT_LEASE_SECONDS", "PGELECT_LEASE_S"),
        ("PGELECT_HEATH_INTERVAL_S", "PGELECT_HEALTH_INTERVAL_S"),
        ("PGELECT_INTERVAL_S", "PGELECT_HEALTH_INTERVAL_S"),
        ("PGELECT_GRACE_S", "PGELECT_RECONNECT_GRACE_S"),
        ("PGELECT_DRAIN", "PGELECT_DRAIN_TIMEOUT_S"),
        ("PGELECT_FENCE", "PGELECT_FENCING"),
        ("PGELECT_DNS", "PGELECT_DSN"),
        ("PGELECT_DSN_FILE", "PGELECT_DSN"),
        ("PGELECT_RETRY_COUNT", "PGELECT_RETRY"),
        ("PGELECT_ALLOW_POOLERS", "PGELECT_ALLOW_POOLER"),
    ],
)
def test_a_misspelt_setting_is_refused_with_what_may_be_meant(variable: str, meant: str) -> None:
    """It would be ignored in silence, and the lock run with a default that nobody chose."""
    with pytest.raises(ValueError, match=rf"^{variable} is no setting.*\b{meant}\?$"):
        arguments({variable: "1"})


def test_after_the_prefix_of_the_lock_nothing_but_a_setting_may_stand() -> None:
    with pytest.raises(ValueError, match=r"^PGELECT_INVOICES_TOKEN is no setting. After PGELECT_INVOICES_ may"):
        arguments({"PGELECT_INVOICES_TOKEN": "1"})
    assert arguments({"PGELECT_INVOICES_TOKEN": "1"}, "orders") == {"name": "orders"}


@pytest.mark.parametrize(
    "variable",
    [
        "PGELECT_INVOICES_EU_LEASE_S",  # of a lock whose name begins like ours
        "PGELECT_ORDERS_KEY1",
        "PGELECT_HTTP_PORT",
        "PGELECT_HTTP_HOST",
        "PGELECT_LOG_LEVEL",
        "PGELECT_TEST_TIMEOUT_SCALE",
        "PGELECT_VERSION",
        "PGELECT_",
        "PGELECT",
        "pgelect_lease",
        "LEASE",
        # What Kubernetes sets for Services called pgelect, pgelect-invoices and pgelect-lease:
        "PGELECT_SERVICE_HOST",
        "PGELECT_SERVICE_PORT",
        "PGELECT_PORT",
        "PGELECT_PORT_5432_TCP",
        "PGELECT_PORT_5432_TCP_PROTO",
        "PGELECT_INVOICES_SERVICE_HOST",
        "PGELECT_INVOICES_SERVICE_PORT_METRICS",
        "PGELECT_INVOICES_PORT",
        "PGELECT_INVOICES_PORT_8080_TCP_ADDR",
        "PGELECT_LEASE_SERVICE_HOST",
        "PGELECT_LEASE_PORT_53_UDP_PORT",
    ],
)
def test_what_is_somebody_elses_is_left_alone(variable: str) -> None:
    """A pod must not fail to start because of a Service that somebody else has made."""
    assert arguments({variable: "tcp://10.0.0.1:5432"}) == {"name": "invoices"}


def test_a_lock_that_is_called_like_a_part_of_those_is_no_trouble() -> None:
    environ = {"PGELECT_SERVICE_HOST": "10.0.0.1", "PGELECT_PORT_5432_TCP": "tcp://10.0.0.1:5432"}
    assert arguments(environ, "service") == {"name": "service"}
    assert arguments(environ, "port") == {"name": "port"}


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("lease", "PGELECT_LEASE_S"),
        ("health", "PGELECT_HEALTH_INTERVAL_S"),
        ("reconnect", "PGELECT_RECONNECT_GRACE_S"),
        ("retry", "PGELECT_RETRY_MAX_S"),
    ],
)
def test_a_lock_that_is_called_like_a_part_of_a_setting_has_the_settings_of_all_locks(name: str, variable: str) -> None:
    """A fleet's setting must not keep one of its locks from starting."""
    same = arguments({variable: "12"}, "invoices")
    assert arguments({variable: "12"}, name) == {**same, "name": name}
    assert same.keys() > {"name"}


def test_a_lock_that_is_called_like_a_part_of_what_run_tells_is_no_trouble() -> None:
    assert arguments({"PGELECT_ACQUIRED_AT": "2026-11-30T03:12:54+00:00"}, "acquired") == {"name": "acquired"}


@pytest.mark.parametrize("name", [None, 5, ("a",)])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(TypeError, match=r"^name must be a str"):
        settings_from_env(name, {})


def test_an_empty_name_is_refused_by_the_constructor() -> None:
    with pytest.raises(ValueError, match=r"^name must not be empty"):
        lock({}, "")
