"""The file that holds the public types is checked by mypy with everything else, and is never run."""

import ast
import fnmatch
import tomllib
from pathlib import Path
from typing import Any

import pgelect

ROOT = Path(__file__).parents[2]
TYPES = ROOT / "tests" / "typing" / "public_types.py"
TOOLS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
PEERS = ["asyncpg", "asyncpg_lock", "grelmicro", "matplotlib", "notifelect", "redis"]
COLLECTED = TOOLS["pytest"]["ini_options"].get("python_files", ["test_*.py", "*_test.py"])


def test_mypy_checks_it_strictly() -> None:
    assert "tests" in TOOLS["mypy"]["files"]
    assert TOOLS["mypy"]["strict"] is True
    assert "exclude" not in TOOLS["mypy"]
    # The peers of the benchmarks, which need not be installed, are the only ones that are not looked into.
    (peers,) = TOOLS["mypy"]["overrides"]
    assert peers["module"] == [f"{name}.*" for name in PEERS]
    assert {*peers} == {"module", "follow_imports", "ignore_missing_imports"}


def test_pytest_does_not_collect_it() -> None:
    assert TYPES.is_file()
    assert not any(fnmatch.fnmatch(TYPES.name, pattern) for pattern in COLLECTED)


def test_it_says_something_of_everything_public() -> None:
    names = {node.id for node in ast.walk(ast.parse(TYPES.read_text(encoding="utf-8"))) if isinstance(node, ast.Name)}
    names |= {
        node.attr for node in ast.walk(ast.parse(TYPES.read_text(encoding="utf-8"))) if isinstance(node, ast.Attribute)
    }
    without_fields = {"ConfigurationError", "ForkedError", "NotPrimaryError"}
    assert set(pgelect.__all__) - names <= without_fields


def test_it_says_something_of_every_public_method_of_a_lock() -> None:
    source = TYPES.read_text(encoding="utf-8")
    methods = [name for name in dir(pgelect.LeaderLock) if not name.startswith("_")]
    assert len(methods) > 20
    assert [name for name in methods if f"lock.{name}" not in source] == []
