"""What a deliberate fault is, and how it is put in and taken out again."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Mutant:
    """One deliberate fault.

    Attributes:
        what: the fault, in words.
        broken: the attributes that are replaced: (owner, name, what stands there instead).
        finds: a word of what the simulation says when it finds it.
        groups: it is one of groups, and found by their simulation.
        seed: one that found it: what is rare is tried there first. Any change of the code may make it another one.
    """

    what: str
    broken: tuple[tuple[Any, str, Any], ...]
    finds: str
    groups: bool = False
    seed: int = 0
    name: str = ""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break it for the length of the block."""
        with ExitStack() as stack:
            for owner, name, instead in self.broken:
                if isinstance(owner, dict):
                    stack.enter_context(patch.dict(owner, {name: instead}))
                else:
                    stack.enter_context(patch.object(owner, name, instead))
            yield


def named(mutants: dict[str, Mutant], *, groups: bool = False) -> list[Mutant]:
    """Give each its name."""
    return [replace(mutant, name=name, groups=groups) for name, mutant in mutants.items()]
