"""docker-compose.yml, as far as it can be judged without an engine: by the specification's schema, and beyond it."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from pgelect.cli.demo_ledger import LOCK_NAME

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
SCHEMA = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text(encoding="utf-8"))

# As Compose reads it: $$ is a dollar sign, and a variable is ${NAME:-default}.
VARIABLE = re.compile(r"\$\$|\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}|\$(?P<bare>.)?")


def interpolated(text: str, environment: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        assert match["name"] is not None, f"{match[0]!r} is neither $$ nor ${{NAME:-default}}"
        assert match["default"], f"{match['name']} has no default"
        return environment.get(match["name"]) or match["default"]

    return VARIABLE.sub(value, text)


def resolved(value: Any, environment: dict[str, str]) -> Any:
    """Interpolate values, not keys, after the YAML is read: as Compose does."""
    if isinstance(value, str):
        return interpolated(value, environment)
    if isinstance(value, list):
        return [resolved(item, environment) for item in value]
    if isinstance(value, dict):
        return {key: resolved(item, environment) for key, item in value.items()}
    return value


RAW = yaml.safe_load(TEXT)
COMPOSE: dict[str, Any] = resolved(RAW, {})
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
REPLICAS = [name for name in SERVICES if name.startswith("replica-")]
POSTGRES = ["primary", "standby"]

every_service = pytest.mark.parametrize("name", SERVICES)
every_replica = pytest.mark.parametrize("name", REPLICAS)


def ports(service: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    for port in service.get("ports", []):
        address, published, target = port.split(":")
        yield address, int(published), int(target)


def listens_on(name: str) -> int:
    environment = SERVICES[name].get("environment", {})
    return int(environment.get("LISTEN_PORT", 5432))


@pytest.mark.parametrize("compose", [RAW, COMPOSE], ids=["as written", "with variables resolved"])
def test_it_fits_the_schema_of_the_compose_specification(compose: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.check_schema(SCHEMA)
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(compose)] == []


def test_the_schema_would_refuse_a_mistake() -> None:
    """Holds off a vacuous check: a schema that lets everything pass."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    mistakes: list[dict[str, Any]] = [
        {"ports": "5432"},
        {"healtcheck": {}},
        {"depends_on": {"primary": {"condition": "ready"}}},
    ]
    for mistake in mistakes:
        broken = {**COMPOSE, "services": {**SERVICES, "primary": {**SERVICES["primary"], **mistake}}}
        assert not validator.is_valid(broken), mistake


def test_it_has_a_primary_a_standby_a_pooler_and_three_replicas() -> None:
    assert [*SERVICES] == ["primary", "standby", "pgbouncer", "replica-1", "replica-2", "replica-3"]


@every_service
def test_every_service_has_an_image_with_a_fixed_version_or_is_built_here(name: str) -> None:
    service = SERVICES[name]
    if "build" in service:
        assert service["build"]["context"] == "."
        sources = re.findall(r"^(?:FROM) (\S+)", service["build"]["dockerfile_inline"], re.MULTILINE)
    else:
        sources = [service["image"]]
    assert sources
    for source in sources:
        assert re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", source), f"{source} has no version"


@every_service
def test_every_service_is_watched_and_started_again(name: str) -> None:
    service = SERVICES[name]
    health = service["healthcheck"]
    assert health["test"][0] == "CMD"
    assert {"interval", "timeout", "retries", "start_period"} <= health.keys()
    assert service["restart"] == "unless-stopped"


def test_published_ports_are_set_all_different_and_open_to_this_machine_only() -> None:
    published = [port for service in SERVICES.values() for port in ports(service)]
    assert {address for address, _, _ in published} == {"127.0.0.1"}
    assert len({number for _, number, _ in published}) == len(published) == 3
    for name, service in SERVICES.items():
        assert {target for _, _, target in ports(service)} <= {listens_on(name)}


@every_service
def test_dependencies_exist_and_are_waited_for_until_they_are_healthy(name: str) -> None:
    for other, dependency in SERVICES[name].get("depends_on", {}).items():
        assert dependency["condition"] == "service_healthy"
        assert "healthcheck" in SERVICES[other]


def test_dependencies_go_round_in_no_circle() -> None:
    order = list(SERVICES)
    for name, service in SERVICES.items():
        assert all(order.index(other) < order.index(name) for other in service.get("depends_on", {}))


def test_volumes_and_configs_are_declared_used_and_used_once() -> None:
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    assert sorted(mounted) == sorted(COMPOSE["volumes"])
    sources = [config["source"] for service in SERVICES.values() for config in service.get("configs", [])]
    assert sources == [*COMPOSE["configs"]]


@pytest.mark.parametrize("name", POSTGRES)
def test_the_data_of_both_servers_is_on_their_volume(name: str) -> None:
    service = SERVICES[name]
    (target,) = (volume.split(":")[1] for volume in service["volumes"])
    data = service["environment"].get("PGDATA", "/var/lib/postgresql/data")  # the image's own default
    assert data == target or data.startswith(f"{target}/")


def test_a_password_in_the_environment_reaches_everybody_who_needs_it() -> None:
    other = resolved(RAW, {"POSTGRES_PASSWORD": "other"})
    passwords = {
        (name, key): value
        for name, service in other["services"].items()
        for key, value in service.get("environment", {}).items()
        if "PASSWORD" in key
    }
    assert {name for name, _ in passwords} == {*SERVICES}
    assert set(passwords.values()) == {"other"}


@every_replica
def test_a_replica_connects_to_services_that_it_waits_for_and_on_their_port(name: str) -> None:
    environment = SERVICES[name]["environment"]
    hosts = environment["PGHOST"].split(",")
    assert {*hosts} == {*SERVICES[name]["depends_on"]}
    assert {listens_on(host) for host in hosts} == {int(environment.get("PGPORT", 5432))}
    if len(hosts) > 1:
        assert conninfo_to_dict("", target_session_attrs=environment["PGTARGETSESSIONATTRS"])
        assert environment["PGTARGETSESSIONATTRS"] == "primary"


def test_all_replicas_meet_in_one_database_as_one_user() -> None:
    """An advisory lock belongs to a database: replicas in two of them would both lead."""
    assert {SERVICES[name]["environment"]["PGDATABASE"] for name in REPLICAS} == {"pgelect"}
    assert {SERVICES[name]["environment"]["PGUSER"] for name in REPLICAS} == {"pgelect"}
    primary, pooler = SERVICES["primary"]["environment"], SERVICES["pgbouncer"]["environment"]
    assert (primary["POSTGRES_DB"], primary["POSTGRES_USER"], pooler["DB_USER"]) == ("pgelect", "pgelect", "pgelect")
    assert pooler["DB_HOST"] == "primary"


def test_the_pooler_is_in_session_mode() -> None:
    assert SERVICES["pgbouncer"]["environment"]["POOL_MODE"] == "session"


@every_replica
def test_a_replica_runs_the_demos_worker_which_exists(name: str) -> None:
    command = SERVICES[name]["command"]
    assert command[:2] == ["python", "-m"]
    assert ROOT.joinpath(*command[2].split(".")).with_suffix(".py").is_file()


@every_replica
def test_the_image_of_a_replica_copies_what_its_installation_reads(name: str) -> None:
    dockerfile = SERVICES[name]["build"]["dockerfile_inline"]
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE) for word in line.split()]
    assert {"pyproject.toml", "README.md", "pgelect"} <= {*copied}
    assert [word for word in copied if not (ROOT / word).exists()] == []
    extras = re.search(r"pip install .*\[(.+)\]", dockerfile)
    assert extras is not None
    assert extras[1] == "binary"


@every_replica
def test_the_health_check_of_a_replica_is_python_and_asks_for_the_demos_lock(name: str) -> None:
    code = SERVICES[name]["healthcheck"]["test"][-1]
    compile(code, "healthcheck", "exec")
    assert f"pgelect:{LOCK_NAME}:" in code
    assert SERVICES[name]["hostname"] == name


@pytest.mark.parametrize(
    "script",
    [SERVICES["standby"]["command"][-1], COMPOSE["configs"]["replication"]["content"]],
    ids=["standby", "init"],
)
def test_inline_shell_is_shell(script: str) -> None:
    subprocess.run(["bash", "-n", "-c", script], check=True)


def test_it_names_no_file_that_a_checkout_does_not_have() -> None:
    """`env_file`, `secrets` of files and bind mounts would fail on a fresh machine."""
    assert not {"env_file", "secrets", "extends"} & {key for service in SERVICES.values() for key in service}
    mounts = [volume for service in SERVICES.values() for volume in service.get("volumes", [])]
    assert all(not mount.startswith((".", "/", "~")) for mount in mounts)
