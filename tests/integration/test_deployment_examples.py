"""The README's Deployment and systemd unit, as far as they can be judged without a cluster and without systemd."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import typer
import yaml

from pgelect import LeaderLock
from pgelect._environment import settings_from_env
from pgelect._health import Health
from pgelect.cli.app import app
from pgelect.cli.run_campaign import RELEASE_S
from pgelect.http import HealthServer

ROOT = Path(__file__).parents[2]
FLAGS = re.MULTILINE | re.DOTALL
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(marker: str, language: str) -> str:
    """The code between two markers of the README."""
    found = re.findall(rf"^<!-- {marker} -->\n```{language}\n(.*?)^```\n<!-- /{marker} -->$", README, FLAGS)
    assert len(found) == 1, f"the README has {len(found)} blocks marked {marker}"
    return str(found[0])


def run_options(arguments: list[str]) -> dict[str, Any]:
    """What ``pgelect run`` makes of its arguments; it fails where it would refuse them."""
    command: Any = typer.main.get_command(app)
    with command.commands["run"].make_context("run", arguments) as context:
        return dict(context.params)


def arguments_of(name: str, environ: dict[str, str]) -> dict[str, Any]:
    """What these variables set; it fails where one is misspelt."""
    found = settings_from_env(name, environ)
    LeaderLock(**found.arguments)
    return found.arguments


# The Deployment


DEPLOYMENT: dict[str, Any] = yaml.safe_load(block("kubernetes", "yaml"))
SPEC: dict[str, Any] = DEPLOYMENT["spec"]
POD: dict[str, Any] = SPEC["template"]["spec"]
(CONTAINER,) = POD["containers"]
COMMAND: list[str] = [*CONTAINER["command"], *CONTAINER["args"]]
PROBES = {name: probe for name, probe in CONTAINER.items() if name.endswith("Probe")}


def test_it_is_a_deployment_whose_selector_finds_its_own_pods() -> None:
    assert (DEPLOYMENT["apiVersion"], DEPLOYMENT["kind"]) == ("apps/v1", "Deployment")
    labels = SPEC["template"]["metadata"]["labels"]
    assert SPEC["selector"]["matchLabels"].items() <= labels.items()
    for spread in POD["topologySpreadConstraints"]:
        assert spread["labelSelector"]["matchLabels"].items() <= labels.items()


def test_somebody_stands_by_at_every_moment_of_a_rolling_update() -> None:
    assert SPEC["replicas"] >= 2
    assert SPEC["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_every_string_of_its_command_and_environment_is_a_string() -> None:
    """An unquoted 20 or 0.0.0.0 in YAML: Kubernetes refuses numbers there."""
    values = [variable["value"] for variable in CONTAINER["env"] if "value" in variable]
    assert [word for word in [*COMMAND, *values, *_pre_stop()] if not isinstance(word, str)] == []


def test_its_variables_are_settings_and_the_dsn_is_a_secret() -> None:
    environ = {variable["name"]: variable.get("value", "host=db") for variable in CONTAINER["env"]}
    assert {"dsn", "identity", "drain_timeout_s"} <= arguments_of(COMMAND[2], environ).keys()
    (dsn,) = (variable for variable in CONTAINER["env"] if variable["name"].endswith("DSN"))
    assert {*dsn} == {"name", "valueFrom"}
    assert {*dsn["valueFrom"]} == {"secretKeyRef"}


def test_its_command_is_understood() -> None:
    assert COMMAND[:2] == ["pgelect", "run"]
    options = run_options(COMMAND[2:])
    assert options["name"] == DEPLOYMENT["metadata"]["name"]
    assert options["command"] == ["python", "-m", "invoices"]


def test_it_listens_where_the_probes_ask() -> None:
    """A kubelet asks the address of the pod: at loopback nobody would answer it, and every pod be restarted."""
    options = run_options(COMMAND[2:])
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert options["http_host"] == "0.0.0.0"
    assert {*PROBES} == {"startupProbe", "livenessProbe", "readinessProbe"}
    assert {ports[probe["httpGet"]["port"]] for probe in PROBES.values()} == {options["http_port"]}


async def test_the_paths_of_the_probes_are_answered_and_liveness_asks_for_no_readiness() -> None:
    class Waiting:
        is_leader = False

        def health(self) -> Health:
            return Health(healthy=True, ready=False, reason="no connection to the server")

    asked = {name: probe["httpGet"]["path"] for name, probe in PROBES.items()}
    async with HealthServer(Waiting(), port=0) as server, aiohttp.ClientSession() as client:
        said = {}
        for name, path in asked.items():
            async with client.get(f"{server.url}{path}") as answer:
                said[name] = answer.status
    assert said == {"startupProbe": 200, "livenessProbe": 200, "readinessProbe": 503}


def test_the_grace_of_the_pod_is_longer_than_all_that_has_to_happen_in_it() -> None:
    """Holds off a pod that is killed in the middle of its drain, at every deploy."""
    environ = {variable["name"]: variable.get("value", "") for variable in CONTAINER["env"]}
    drain_s = arguments_of(COMMAND[2], environ)["drain_timeout_s"]
    sleep, seconds = _pre_stop()
    assert sleep == "sleep"
    assert POD["terminationGracePeriodSeconds"] > float(seconds) + drain_s + RELEASE_S
    assert LeaderLock(name="x", drain_timeout_s=drain_s).bounds().failover_clean.seconds < drain_s + RELEASE_S


def test_a_probe_that_is_slow_once_restarts_nothing() -> None:
    for probe in PROBES.values():
        assert probe["failureThreshold"] >= 2
        assert probe.get("timeoutSeconds", 1) <= probe["periodSeconds"]


def test_it_asks_for_resources_and_does_not_limit_the_cpu() -> None:
    assert {*CONTAINER["resources"]["requests"]} == {"cpu", "memory"}
    assert {*CONTAINER["resources"]["limits"]} == {"memory"}


def _pre_stop() -> list[str]:
    command: list[str] = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    return command


# The unit


TEXT = block("systemd", "ini")


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # as its documentation says to keep capitals
    parser.read_string(TEXT)
    return parser


UNIT = unit()


def _environment() -> Iterator[tuple[str, str]]:
    for word in shlex.split(UNIT["Service"]["Environment"]):
        name, _, value = word.partition("=")
        yield name, value


def test_the_unit_has_its_sections_and_comes_up_at_boot() -> None:
    assert UNIT.sections() == ["Unit", "Service", "Install"]
    assert UNIT["Install"]["WantedBy"] == "multi-user.target"
    assert UNIT["Unit"]["After"] == UNIT["Unit"]["Wants"] == "network-online.target"


def test_its_command_line_is_understood_and_its_variables_are_settings() -> None:
    program, subcommand, *arguments = shlex.split(UNIT["Service"]["ExecStart"])
    assert (Path(program).name, subcommand) == ("pgelect", "run")
    options = run_options(arguments)
    assert options["name"] == "invoices"
    assert [*map(str, map(Path, options["command"]))][1:] == ["-m", "invoices"]
    assert arguments_of(options["name"], dict(_environment()))["drain_timeout_s"] == 20.0


def test_no_password_stands_in_it() -> None:
    """Everybody who may log in can read units."""
    assert "DSN" not in UNIT["Service"]["Environment"]
    assert UNIT["Service"]["EnvironmentFile"].startswith("/etc/")


def test_it_gives_a_stop_more_time_than_the_drain_and_the_release() -> None:
    drain_s = arguments_of("invoices", dict(_environment()))["drain_timeout_s"]
    assert float(UNIT["Service"]["TimeoutStopSec"]) > drain_s + RELEASE_S


def test_only_the_main_process_gets_term_and_a_failure_is_no_end() -> None:
    """With KillMode=control-group the command would get TERM twice, and once while its leader still stands for it."""
    service = UNIT["Service"]
    assert (service["Type"], service["KillMode"], service["Restart"]) == ("exec", "mixed", "always")
    assert float(service["RestartSec"]) > 0
    assert UNIT["Unit"]["StartLimitIntervalSec"] == "0"


def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here")
    path = tmp_path / "invoices.service"
    path.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", TEXT, flags=re.MULTILINE))
    done = _verify(analyze, path)
    assert (done.returncode, done.stdout) == (0, "")
    assert str(path) not in done.stderr
    path.write_text(TEXT.replace("KillMode=mixed", "KilMode=mixed"))
    assert "KilMode" in _verify(analyze, path).stderr, "it would find a mistake"


def _verify(analyze: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [analyze, "verify", "--man=no", "--recursive-errors=no", path], capture_output=True, text=True, check=False
    )
