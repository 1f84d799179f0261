"""The diagram is the table: the README shows the present one, and it leaves nothing out."""

import re

import pytest

from pgelect._engine.diagram import mermaid
from pgelect._engine.machine import TABLE
from pgelect._engine.model import LockState
from tests.refresh_readme import BEGIN, END, README, refreshed

ARROW = re.compile(r"    (?P<before>\w+) --> (?P<after>\w+): (?P<labels>.+)")


def arrows() -> dict[tuple[str, str], list[str]]:
    found = [ARROW.fullmatch(line) for line in mermaid().splitlines()[2:]]
    return {(arrow["before"], arrow["after"]): arrow["labels"].split(", ") for arrow in found if arrow}


def test_the_readme_shows_the_present_diagram() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == refreshed(text), "run: python -m tests.refresh_readme"


def test_it_is_a_mermaid_state_diagram_that_begins_stopped() -> None:
    first, second, *arrow_lines = mermaid().splitlines()
    assert (first, second) == ("stateDiagram-v2", "    [*] --> stopped")
    assert all(ARROW.fullmatch(line) for line in arrow_lines)


def test_it_has_an_arrow_for_each_change_of_state_in_the_table_and_no_other() -> None:
    changes = {
        (state.value, target.value)
        for state, row in TABLE.items()
        for _, targets in row.values()
        for target in targets
        if target is not state
    }
    assert arrows().keys() == changes
    assert len(mermaid().splitlines()) == 2 + len(changes)


def test_it_shows_all_six_states() -> None:
    assert {name for pair in arrows() for name in pair} == {state.value for state in LockState}


def test_the_labels_are_the_events_in_words() -> None:
    assert arrows()["stopped", "follower"] == ["start"]
    assert arrows()["leader", "releasing"] == ["step down", "step down requested", "shutdown"]
    assert "lock granted" in arrows()["follower", "acquiring"]
    assert sum(map(len, arrows().values())) == sum(
        target is not state for state, row in TABLE.items() for _, targets in row.values() for target in targets
    )


def test_refreshing_replaces_what_is_between_the_markers_and_nothing_else() -> None:
    text = f"before\n{BEGIN}\nstale \\1\n{END}\nafter\n"
    new = refreshed(text)
    assert new == f"before\n{BEGIN}\n```mermaid\n{mermaid()}\n```\n{END}\nafter\n"
    assert refreshed(new) == new


@pytest.mark.parametrize("text", ["", f"{END}\n{BEGIN}", BEGIN, f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_text_without_its_markers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="needs one <!-- states -->"):
        refreshed(text)
