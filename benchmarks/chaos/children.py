"""The replicas as the nemesis sees them: processes with a name, a number of restarts, links, and a book."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.chaos import plan
from benchmarks.chaos.links import Links
from benchmarks.process import Child, python

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from benchmarks.chaos.book import Book


HUNG = -1000
"""In place of an exit status: it did not end."""


class Process(Child):
    """One life of a replica."""

    @property
    def last_token(self) -> int:
        """The token of the term that it last said it has; 0 for none."""
        return next((int(told["token"]) for told in reversed(self._events) if told["event"] == "leads"), 0)

    def ended(self, within_s: float) -> int:
        """Wait for its end; return the exit status, or HUNG."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return HUNG

    @property
    def said(self) -> str:
        """All that it wrote to standard error; nothing is right."""
        self._complaints.seek(0)
        return self._complaints.read().decode(errors="replace")[-4000:]


class Replica:
    """A replica, over all its lives."""

    def __init__(self, character: plan.Character, links: Links, directory: Path, seed: int, broken: str) -> None:
        self.character = character
        self.links = links
        self._directory = directory
        self._seed = seed
        self._broken = broken
        self._lives = 0
        self._process: Process | None = None

    @property
    def name(self) -> str:
        """The same for all lives."""
        return self.character.name

    @property
    def process(self) -> Process:
        """The present life."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Begin a new life; ``started`` waits for it."""
        self._lives += 1
        name = f"{self.name}.{self._lives}"
        given = {
            "process": name,
            "character": asdict(self.character),
            "election_ports": self.links.ports("election", reverse=self.character.reverse),
            "writer_ports": self.links.ports("writer", reverse=self.character.reverse),
            "password_file": str(self._directory / "password"),
            "book": str(self._directory / f"{name}.jsonl"),
            "seed": self._seed,
            "broken": self._broken,
        }
        self._process = Process(name, python("benchmarks.chaos.replica", json.dumps(given)))

    def started(self) -> None:
        """Wait until its lock has been started."""
        self.process.wait_for("started", within_s=plan.STARTS_WITHIN_S)

    def kill(self, book: Book) -> None:
        """End this life with SIGKILL."""
        said = self.process.said
        self.process.close()
        book.write("killed", process=self.process.name, said=said)

    def end(self, book: Book) -> None:
        """Ask it to shut down, and wait for that."""
        self.process.signal(signal.SIGTERM)
        self.await_end(book, plan.ENDS_WITHIN_S)

    def await_end(self, book: Book, within_s: float) -> None:
        """Wait for the end of a process that was asked to shut down; one that hangs is killed."""
        status = self.process.ended(within_s)
        book.write("exited", process=self.process.name, status=status, said=self.process.said)
        self.process.close()

    def close(self) -> None:
        """Kill it, whatever it does. May be called again."""
        if self._process is not None:
            self._process.close()


class Troop:
    """All of them, each with links of its own."""

    def __init__(self, ports: tuple[int, int], directory: Path, seed: int, broken: str) -> None:
        self._all = ExitStack()
        self.replicas: list[Replica] = []
        try:
            for character in plan.CHARACTERS:
                links = self._all.enter_context(Links(ports))
                replica = Replica(character, links, directory, seed, broken)
                self._all.callback(replica.close)
                self.replicas.append(replica)
        except BaseException:
            self._all.close()
            raise

    def of(self, process: str) -> Replica:
        """Find the replica that a process is a life of."""
        return next(replica for replica in self.replicas if replica.name == process.partition(".")[0])

    def start(self) -> None:
        """Start all, and wait for them."""
        for replica in self.replicas:
            replica.start()
        for replica in self.replicas:
            replica.started()

    def lead_to(self, slot: int, port: int) -> None:
        """Have a slot of everybody's links lead to another server."""
        for replica in self.replicas:
            replica.links.lead_to(slot, port)

    def rest(self) -> None:
        """Mend all links, and have the writers hold no transaction open any more."""
        for replica in self.replicas:
            replica.links.mend()
            with suppress(OSError):  # it has ended by itself, and the checker will hear of it
                replica.process.tell("rest")

    def end(self, book: Book) -> None:
        """Shut all down at the same time."""
        for replica in self.replicas:
            replica.process.signal(signal.SIGTERM)
        deadline = time.monotonic() + plan.ENDS_WITHIN_S
        for replica in self.replicas:
            replica.await_end(book, max(0.1, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.close()
