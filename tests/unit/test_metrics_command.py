"""``pgelect metrics``: what it prints can be handed on as it is, with none of the optional packages of metrics."""

import json
import subprocess
import sys

import pytest
import yaml

from pgelect.metrics import alert_rules, dashboard
from tests.support.commands import pgelect


def test_it_prints_the_alert_rules_as_they_are_shipped() -> None:
    said = pgelect("metrics", "alerts")
    assert (said.code, said.err) == (0, "")
    assert said.out == alert_rules()
    assert yaml.safe_load(said.out)["groups"][0]["name"] == "pgelect"


def test_it_prints_the_dashboard_as_it_is_shipped() -> None:
    said = pgelect("metrics", "dashboard")
    assert (said.code, said.err) == (0, "")
    assert said.out == dashboard()
    assert json.loads(said.out)["uid"] == "pgelect"


def test_what_it_prints_is_plain_ascii_for_every_terminal_and_editor() -> None:
    assert alert_rules().isascii()
    assert dashboard().isascii()


@pytest.mark.parametrize("arguments", [(), ("nonsense",)], ids=["nothing", "nonsense"])
def test_without_saying_what_it_is_a_mistake_and_says_what_there_is(arguments: tuple[str, ...]) -> None:
    said = pgelect("metrics", *arguments)
    assert said.code == 2
    assert ("--help" if arguments else "alerts") in said.out + said.err


def test_it_needs_no_package_of_metrics_and_does_not_mind_a_reader_that_leaves() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = sys.modules['opentelemetry'] = None\n"
        "sys.argv = ['pgelect', 'metrics', 'dashboard']\n"
        "from pgelect.cli import main; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 141
