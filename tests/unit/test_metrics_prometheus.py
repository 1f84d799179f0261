"""The adapter for Prometheus: what a lock tells reaches the right series, and a scrape shows how the lock is now."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from pgelect import LockKey, LockState
from pgelect.metrics import PrometheusMetrics
from tests.support.metering import BEGAN_AT, View, series_of, tell_everything, term_of, value_of


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def view() -> View:
    return View()


# What is told


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("pgelect_transitions_total", {"from_": "acquiring", "to": "leader", "reason": "minted"}, 1),
        ("pgelect_attempts_failed_total", {"cause": "held"}, 1),
        ("pgelect_terms_total", {}, 1),
        ("pgelect_takeover_seconds_sum", {"after": "release"}, 0.004),
        ("pgelect_takeover_seconds_bucket", {"after": "release", "le": "0.0025"}, 0),
        ("pgelect_takeover_seconds_bucket", {"after": "release", "le": "0.005"}, 1),
        ("pgelect_takeover_seconds_count", {"after": "loss"}, 0),
        ("pgelect_proof_seconds_sum", {"outcome": "ok"}, 0.002),
        ("pgelect_proof_seconds_sum", {"outcome": "failed"}, 3),
        ("pgelect_proofs_failed_total", {}, 1),
        ("pgelect_reconnects_total", {}, 1),
        ("pgelect_fence_checks_total", {"outcome": "ok"}, 1),
        ("pgelect_fence_checks_total", {"outcome": "stale"}, 1),
        ("pgelect_fence_checks_total", {"outcome": "failed"}, 0),
        ("pgelect_fence_check_seconds_count", {}, 2),
        ("pgelect_callback_failures_total", {"callback": "lost"}, 1),
        ("pgelect_event_loop_lag_seconds_sum", {}, 0.02),
        ("pgelect_terms_ended_total", {"ending": "lost", "cause": "expired"}, 1),
        ("pgelect_term_seconds_sum", {}, 90),
        ("pgelect_term_seconds_bucket", {"le": "60.0"}, 0),
        ("pgelect_term_seconds_bucket", {"le": "300.0"}, 1),
    ],
)
def test_what_a_lock_tells_reaches_its_series(
    registry: CollectorRegistry, view: View, name: str, labels: dict[str, str], value: float
) -> None:
    tell_everything(PrometheusMetrics(registry).for_lock(view), view)
    assert value_of(registry, name, **labels) == pytest.approx(value)


def test_a_first_term_ever_was_taken_over_from_nobody(registry: CollectorRegistry, view: View) -> None:
    PrometheusMetrics(registry).for_lock(view).term_began(term_of(view), None, after_release=True)
    assert value_of(registry, "pgelect_terms_total") == 1
    assert value_of(registry, "pgelect_takeover_seconds_count", after="release") == 0
    assert value_of(registry, "pgelect_takeover_seconds_count", after="loss") == 0


def test_a_duration_below_zero_counts_as_none(registry: CollectorRegistry, view: View) -> None:
    """Holds off a sum that goes down, which a rate takes for a restart: the time of a release is another clock's."""
    PrometheusMetrics(registry).for_lock(view).term_began(term_of(view), -0.001, after_release=True)
    assert value_of(registry, "pgelect_takeover_seconds_sum", after="release") == 0


# How the lock is now


def test_a_scrape_reads_the_lock_at_that_moment(registry: CollectorRegistry, view: View) -> None:
    """Holds off a gauge that was set to 1 and stays there though nothing runs any more: trust ages by itself."""
    metrics = PrometheusMetrics(registry).for_lock(view)
    view.lead(7, trust_left_s=14.0)
    metrics.term_began(term_of(view), None, after_release=True)
    metrics.followers(2)

    def shown() -> tuple[float | None, ...]:
        names = ("is_leader", "token", "trust_left_seconds", "term_start_time_seconds", "followers_waiting")
        return tuple(value_of(registry, f"pgelect_{name}") for name in names)

    assert shown() == (1, 7, 14, BEGAN_AT.timestamp(), 2)
    view.trust_left_s = 3.5  # and nobody tells anything
    assert shown() == (1, 7, 3.5, BEGAN_AT.timestamp(), 2)
    view.is_leader, view.trust_left_s, view.token = False, 0.0, None
    assert shown() == (0, 0, 0, 0, 0)


def test_the_state_is_one_of_all_states(registry: CollectorRegistry, view: View) -> None:
    PrometheusMetrics(registry).for_lock(view)
    for state in LockState:
        view.state = state
        shown = {other: value_of(registry, "pgelect_state", state=other.value) for other in LockState}
        assert shown == {other: float(other is state) for other in LockState}


def test_followers_of_an_earlier_term_are_not_those_of_the_next(registry: CollectorRegistry, view: View) -> None:
    metrics = PrometheusMetrics(registry).for_lock(view)
    view.lead(7)
    metrics.term_began(term_of(view), None, after_release=True)
    metrics.followers(2)
    metrics.term_ended(term_of(view), 1.0, released=True, cause="step_down")
    view.lead(8)
    metrics.term_began(term_of(view, 8), 0.1, after_release=True)
    assert value_of(registry, "pgelect_followers_waiting") == 0


def test_a_lock_that_is_gone_leads_no_more_and_what_it_did_still_counts(registry: CollectorRegistry) -> None:
    view = View()
    metrics = PrometheusMetrics(registry).for_lock(view)
    view.lead(7)
    metrics.term_began(term_of(view), None, after_release=True)
    assert value_of(registry, "pgelect_is_leader") == 1
    del view, metrics
    gc.collect()
    assert value_of(registry, "pgelect_is_leader") == 0
    assert value_of(registry, "pgelect_token") == 0
    assert value_of(registry, "pgelect_trust_left_seconds") == 0
    assert value_of(registry, "pgelect_state", state="leader") == 0
    assert value_of(registry, "pgelect_terms_total") == 1


# From the start


def test_a_lock_that_has_done_nothing_has_all_its_series(registry: CollectorRegistry, view: View) -> None:
    """Holds off an alert that never fires: the increase of a series that appears with its first event is nothing."""
    metrics = PrometheusMetrics(registry).for_lock(view)
    before = series_of(registry)
    assert {value for (name, _), value in before.items() if name != "pgelect_state"} == {0}
    tell_everything(metrics, view)
    assert set(series_of(registry)) == set(before)


def test_a_lock_has_a_sane_number_of_series(registry: CollectorRegistry, view: View) -> None:
    PrometheusMetrics(registry).for_lock(view)
    shown = series_of(registry)
    assert len([name for name, _ in shown if name == "pgelect_transitions_total"]) < 50
    assert len(shown) < 250


def test_scrapes_can_be_parsed_in_both_formats_whatever_the_name(registry: CollectorRegistry) -> None:
    name = 'é "quoted" \\ and\nbroken'
    views = [View(LockKey.from_name(name)), View(LockKey(-5, 7)), View()]
    metrics = PrometheusMetrics(registry)
    kept = [metrics.for_lock(view) for view in views]
    tell_everything(kept[0], views[0])
    locks = {dict(labels)["lock"] for _, labels in series_of(registry)}
    assert locks == {name, "-5/7", "jobs"}
    text = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call] # not annotated there
    families = {family.name for family in parse_openmetrics(text)}  # type: ignore[no-untyped-call] # neither
    assert families >= {"pgelect_is_leader", "pgelect_transitions", "pgelect_takeover_seconds"}


# One object, many; one registry, many


def test_one_object_serves_many_locks(registry: CollectorRegistry) -> None:
    metrics = PrometheusMetrics(registry)
    a, b = View(LockKey(1, 1, "a")), View(LockKey(1, 2, "b"))
    metrics.for_lock(a).reconnected()
    metrics.for_lock(b)
    b.lead(3)
    assert value_of(registry, "pgelect_reconnects_total", lock="a") == 1
    assert value_of(registry, "pgelect_reconnects_total", lock="b") == 0
    assert value_of(registry, "pgelect_is_leader", lock="a") == 0
    assert value_of(registry, "pgelect_is_leader", lock="b") == 1


def test_made_twice_on_one_registry_it_is_the_same(registry: CollectorRegistry) -> None:
    a, b = View(LockKey(1, 1, "a")), View(LockKey(1, 2, "b"))
    PrometheusMetrics(registry).for_lock(a).reconnected()
    PrometheusMetrics(registry).for_lock(b).reconnected()
    assert value_of(registry, "pgelect_reconnects_total", lock="a") == 1
    assert value_of(registry, "pgelect_reconnects_total", lock="b") == 1


def test_two_locks_of_one_name_share_their_series(registry: CollectorRegistry) -> None:
    metrics = PrometheusMetrics(registry)
    a, b = View(), View()
    metrics.for_lock(a).reconnected()
    metrics.for_lock(b).reconnected()
    assert value_of(registry, "pgelect_reconnects_total") == 2
    b.lead(9, trust_left_s=3.0)
    assert value_of(registry, "pgelect_is_leader") == 1
    assert value_of(registry, "pgelect_token") == 9
    a.lead(8, trust_left_s=5.0)
    assert value_of(registry, "pgelect_is_leader") == 2
    assert value_of(registry, "pgelect_token") == 9
    assert value_of(registry, "pgelect_trust_left_seconds") == 3


def test_a_name_that_is_taken_is_refused_and_nothing_is_left(registry: CollectorRegistry) -> None:
    other = Gauge("pgelect_is_leader", "of somebody else", registry=registry)
    with pytest.raises(ValueError, match="pgelect_is_leader"):
        PrometheusMetrics(registry)
    registry.unregister(other)
    PrometheusMetrics(registry).for_lock(view := View())
    assert value_of(registry, "pgelect_is_leader") == 0
    del view


def test_without_a_registry_it_is_the_default_one_which_is_left_alone_until_then() -> None:
    code = (
        "import pgelect.metrics as m, prometheus_client as p\n"
        "from tests.support.metering import View, value_of\n"
        "before = b'pgelect' in p.generate_latest()\n"
        "view = View(); m.PrometheusMetrics().for_lock(view); view.lead(7)\n"
        "print(before, value_of(p.REGISTRY, 'pgelect_token'))"
    )
    assert run(code) == "False 7.0\n"


def test_scrapes_and_locks_in_many_threads_lose_nothing(registry: CollectorRegistry) -> None:
    """Holds off a scrape that dies because a lock was made meanwhile, and a count that is lost."""
    metrics = PrometheusMetrics(registry)
    views = [View(LockKey(1, n, f"lock {n}")) for n in range(4)]
    failures: list[BaseException] = []
    done = threading.Event()

    def act(view: View) -> None:
        try:
            for _ in range(50):
                metrics.for_lock(View(view.key)).reconnected()  # and it is gone at once
                metrics.for_lock(view).fence_check(0.001, "ok")
        except BaseException as error:  # noqa: BLE001 -- shown by the assertion
            failures.append(error)

    def scrape() -> None:
        try:
            while not done.is_set():
                generate_latest(registry)
        except BaseException as error:  # noqa: BLE001 -- shown by the assertion
            failures.append(error)

    scraper = threading.Thread(target=scrape)
    actors = [threading.Thread(target=act, args=(view,)) for view in views]
    for thread in (scraper, *actors):
        thread.start()
    for thread in actors:
        thread.join()
    done.set()
    scraper.join()
    assert failures == []
    for view in views:
        assert value_of(registry, "pgelect_reconnects_total", lock=str(view.key.name)) == 50
        assert value_of(registry, "pgelect_fence_checks_total", lock=str(view.key.name), outcome="ok") == 50


# Several processes behind one endpoint


def test_in_multiprocess_mode_counters_and_histograms_are_summed_and_gauges_are_left_out(tmp_path: Path) -> None:
    """Holds off a process that is gone, or stopped, and still counts as the leader in the file that it has left."""
    code = (
        "import os, prometheus_client as p, prometheus_client.multiprocess as m\n"
        "from pgelect.metrics import PrometheusMetrics\n"
        "from tests.support.metering import View, series_of, term_of, value_of\n"
        "child = os.fork()\n"
        "view = View(); metrics = PrometheusMetrics().for_lock(view); view.lead(7)\n"
        "metrics.term_began(term_of(view), 0.004, after_release=True)\n"
        "if not child: os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "registry = p.CollectorRegistry(); m.MultiProcessCollector(registry)\n"
        "print(value_of(registry, 'pgelect_terms_total'),\n"
        "      value_of(registry, 'pgelect_takeover_seconds_count', after='release'),\n"
        "      {name for name, _ in series_of(registry) if 'leader' in name})"
    )
    assert run(code, PROMETHEUS_MULTIPROC_DIR=str(tmp_path)) == "2.0 2.0 set()\n"


# The package itself


def test_no_optional_package_is_loaded_until_an_adapter_is_asked_for_which_names_its_extra() -> None:
    code = (
        "import sys, pgelect.metrics as m\n"
        "print({'prometheus_client', 'opentelemetry'} & set(sys.modules), hasattr(m, 'StatsdMetrics'))\n"
        "sys.modules['prometheus_client'] = sys.modules['opentelemetry'] = None\n"
        "for adapter in ('PrometheusMetrics', 'OpenTelemetryMetrics'):\n"
        "    try:\n"
        "        getattr(m, adapter)\n"
        "    except ImportError as error:\n"
        "        print(error)"
    )
    first, prometheus, otel = run(code).splitlines()
    assert first == "set() False"
    assert "pip install 'pgelect[prometheus]'" in prometheus
    assert "pip install 'pgelect[otel]'" in otel


def run(code: str, **environment: str) -> str:
    """Run Python of its own; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=Path(__file__).parents[2],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
