"""A dispatcher on its own: it writes down what its callbacks and its owner hear."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgelect._engine.dispatch import Dispatcher
from pgelect._engine.hooks import Hook
from pgelect._engine.term import TermLife

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@dataclass
class Desk:
    """A dispatcher that runs, and all that was heard."""

    dispatcher: Dispatcher
    heard: list[tuple[object, ...]] = field(default_factory=list)
    failed: list[tuple[TermLife, BaseException]] = field(default_factory=list)

    def hear(self, *hooks: Hook) -> None:
        """Write down every call of these hooks, with all arguments."""
        for hook in hooks:
            self.dispatcher.add(hook, self._writer(hook.label))

    def _writer(self, label: str) -> Callable[..., None]:
        def write(*arguments: object) -> None:
            self.heard.append((label, *arguments))

        return write

    def begin_term(self, term: object = "term") -> TermLife:
        """A term begins."""
        life = TermLife()
        self.dispatcher.post(Hook.ACQUIRED, term, life=life)
        return life

    def end_term(self, life: TermLife, term: object = "term", *, hook: Hook = Hook.LOST) -> None:
        """The term ends."""
        life.end()
        self.dispatcher.post(hook, term, life=life)

    def labels(self) -> list[object]:
        """The names of the hooks that were heard."""
        return [call[0] for call in self.heard]


@asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    """A dispatcher that is started, and at the end closed."""
    failed: list[tuple[TermLife, BaseException]] = []
    one = Desk(Dispatcher(lambda life, error: failed.append((life, error))), failed=failed)
    one.dispatcher.start()
    try:
        yield one
    finally:
        await one.dispatcher.close()
