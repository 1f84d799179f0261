"""The alert rules and the dashboard: they are about series that exist, and say what is so."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from pgelect.metrics import PrometheusMetrics, alert_rules, dashboard
from tests.support.metering import Series, View, series_of
from tests.support.promql import Labels, evaluate, grouped_by, parse, selected_by

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "data" / "alert_cases.yml"
RULES_FILE = ROOT / "pgelect" / "metrics" / "alerts.yml"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(alert_rules())["groups"] for rule in group["rules"]
}
BOARD: dict[str, Any] = json.loads(dashboard())
TARGET_LABELS = {"job", "instance", "namespace"}  # which Prometheus itself adds

EXPRESSIONS = {
    **{name: rule["expr"] for name, rule in RULES.items()},
    **{
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in BOARD["panels"]
        for target in panel["targets"]
    },
}


@pytest.fixture(scope="module")
def shown() -> Iterator[dict[Series, float]]:
    """What a scrape shows of a lock that has done nothing yet."""
    registry, view = CollectorRegistry(), View()
    metrics = PrometheusMetrics(registry).for_lock(view)
    yield series_of(registry)
    del metrics


# Both


@pytest.mark.parametrize("of", EXPRESSIONS)
def test_every_series_that_an_expression_selects_exists_from_the_start(shown: dict[Series, float], of: str) -> None:
    """Holds off an alert on a series, or on a value of a label, that was renamed: it would never fire."""
    expression = parse(EXPRESSIONS[of])
    selectors = selected_by(expression)
    assert selectors
    for selector in selectors:
        if selector.name == "up":
            continue
        named = [dict(labels) for name, labels in shown if name == selector.name]
        assert named, f"{selector.name} is not shown"
        assert any(selector.takes(labels) for labels in named), f"nothing is selected by {selector}"
        for label, _, _ in selector.matchers:
            assert label in named[0]


@pytest.mark.parametrize("of", EXPRESSIONS)
def test_every_label_that_an_expression_groups_by_exists(shown: dict[Series, float], of: str) -> None:
    expression = parse(EXPRESSIONS[of])
    names = {selector.name for selector in selected_by(expression)}
    known = {label for name, labels in shown if name in names for label, _ in labels}
    assert grouped_by(expression) <= known | TARGET_LABELS


def test_what_is_no_expression_is_found_out() -> None:
    """The tests above can fail."""
    with pytest.raises(ValueError, match=r"."):
        parse("sum by (lock (pgelect_is_leader) == 0")
    assert [s.name for s in selected_by(parse("max_over_time((a > 0)[5m:]) + rate(b[5m])"))] == ["a", "b"]


# The rules


def test_the_rules_that_people_on_call_need_are_there() -> None:
    assert {
        "PgElectNobodyLeads",
        "PgElectTwoLead",
        "PgElectFlapping",
        "PgElectFenceRefusals",
        "PgElectTrustNearlyGone",
    } <= set(RULES)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_says_how_bad_it_is_what_it_means_and_what_to_do(shown: dict[Series, float], name: str) -> None:
    rule = RULES[name]
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+m", rule["for"])
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    assert "lock" in rule["annotations"]["summary"] or "instance" in rule["annotations"]["summary"]
    for text in rule["annotations"].values():
        assert "\n" not in text
        used = set(re.findall(r"\$labels\.(\w+)", text))
        assert used <= {label for _, labels in shown for label, _ in labels} | TARGET_LABELS
    for series in re.findall(r"pgelect_\w+", rule["annotations"]["runbook"]):
        assert any(name.startswith(series) for name, _ in shown), f"the runbook names {series}"


def seen(leading: dict[str, int], *, lock: str = "jobs") -> dict[tuple[str, Labels], float]:
    """What Prometheus has of some processes, each of which leads or does not."""
    return {
        ("pgelect_is_leader", frozenset({"lock": lock, "job": "app", "instance": process}.items())): value
        for process, value in leading.items()
    }


JOBS = frozenset({("lock", "jobs"), ("job", "app")})
MAIL = frozenset({("lock", "mail"), ("job", "app")})


@pytest.mark.parametrize(
    ("now", "nobody", "two"),
    [
        pytest.param(seen({"a": 1, "b": 0}), {}, {}, id="one of two leads"),
        pytest.param(seen({"a": 0, "b": 0}), {JOBS: 0}, {}, id="none of two"),
        pytest.param(seen({"b": 0}), {JOBS: 0}, {}, id="the leader is not scraped"),
        pytest.param(seen({"a": 1}), {}, {}, id="one leads alone"),
        pytest.param(seen({"a": 1, "b": 1}), {}, {JOBS: 2}, id="both lead"),
        pytest.param(
            seen({"a": 0, "b": 0}) | seen({"a": 1, "b": 1}, lock="mail"), {JOBS: 0}, {MAIL: 2}, id="each lock by itself"
        ),
        pytest.param({}, {}, {}, id="nothing is scraped"),
    ],
)
def test_nobody_leads_and_two_lead_are_told_by_what_is_seen(
    now: dict[tuple[str, Labels], float], nobody: dict[Labels, float], two: dict[Labels, float]
) -> None:
    assert evaluate(parse(RULES["PgElectNobodyLeads"]["expr"]), now) == nobody
    assert evaluate(parse(RULES["PgElectTwoLead"]["expr"]), now) == two


def test_every_rule_has_a_case_that_it_fires_in() -> None:
    cases = CASES.read_text(encoding="utf-8")
    assert [name for name in RULES if len(re.findall(rf'alertname[=:" ]+{name}\b', cases)) < 2] == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian package prometheus)")
@pytest.mark.parametrize("command", [["check", "rules", str(RULES_FILE)], ["test", "rules", str(CASES)]], ids=" ".join)
def test_promtool_takes_the_rules_and_they_fire_when_they_should(command: list[str]) -> None:
    done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


# The dashboard


def test_the_dashboard_lets_people_choose_the_data_source_and_the_locks() -> None:
    variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["lock"]["definition"] == "label_values(pgelect_is_leader, lock)"
    panels = BOARD["panels"]
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels)
    assert all(target["datasource"]["uid"] == "${datasource}" for panel in panels for target in panel["targets"])
    assert all('lock=~"$lock"' in target["expr"] for panel in panels for target in panel["targets"])


def test_the_panels_have_titles_of_their_own_say_what_they_show_and_do_not_overlap() -> None:
    panels = BOARD["panels"]
    assert len({panel["title"] for panel in panels}) == len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_the_dashboard_shows_every_series_that_a_lock_has(shown: dict[Series, float]) -> None:
    used = {selector.name for text in EXPRESSIONS.values() for selector in selected_by(parse(text))}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in shown}
    assert families - {re.sub(r"_(bucket|sum|count)$", "", name) for name in used} == set()
