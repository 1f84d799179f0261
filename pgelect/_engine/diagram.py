"""The states as a Mermaid diagram, drawn from the table itself; a test holds the README's copy to it."""

from __future__ import annotations

from pgelect._engine.causes import words_of_class
from pgelect._engine.machine import TABLE
from pgelect._engine.model import LockState


def mermaid() -> str:
    """Return a Mermaid state diagram: an arrow for each change of state, labelled with the events that may cause it.

    Rules that leave the state as it is are left out, and so is that trust which has run out counts as a failure.
    """
    arrows: dict[tuple[LockState, LockState], list[str]] = {}
    for state in LockState:
        for event, (_, targets) in TABLE[state].items():
            for target in targets:
                if target is not state:
                    arrows.setdefault((state, target), []).append(words_of_class(event, " "))
    lines = [f"    {before.value} --> {after.value}: {', '.join(labels)}" for (before, after), labels in arrows.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {LockState.STOPPED.value}", *lines])
