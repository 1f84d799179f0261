"""The map in tests/README.md: every test that it names is there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
MAP = (TREE / "tests" / "README.md").read_text()
ROWS = [line for line in MAP.splitlines() if line.startswith("| ") and "`tests/" in line]


def named(row: str) -> Iterator[tuple[str, str]]:
    """The tests of a row: file or folder, and the name of a test or nothing."""
    path = ""
    for reference in re.findall(r"`((?:tests/|::)[^`\s]+)`", row):
        found, _, name = reference.partition("::")
        path = found or path
        yield path, name.partition("[")[0]


def test_every_reported_fault_has_its_tests() -> None:
    assert len(ROWS) == 35


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_the_tests_of_a_fault_are_there(row: str) -> None:
    references = list(named(row))
    assert references
    for path, name in references:
        assert (TREE / path).exists(), path
        if name:
            assert re.search(rf"^(?:async )?def {name}\b", (TREE / path).read_text(), re.MULTILINE), f"{path}::{name}"
