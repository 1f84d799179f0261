"""One run: servers, replicas and nemesis come and go, and only books remain, in a directory."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack, contextmanager
from random import Random
from typing import TYPE_CHECKING

from benchmarks.chaos.book import Book
from benchmarks.chaos.broken import on_the_server
from benchmarks.chaos.children import Troop
from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.nemesis import Nemesis
from benchmarks.chaos.peace import look_at_peace, look_at_remains
from benchmarks.chaos.stage import NobodyLedError, Stage
from benchmarks.chaos.stalls import Stalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_LEDGER = """
SELECT id, token, n, timeline, isolation,
    (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::int8 AS committed_us
FROM public.ledger ORDER BY entry
"""


def perform(directory: Path, seed: int, for_s: float, progress: Callable[[str], None], broken: str = "") -> None:
    """Run for that long, and leave the books in ``directory``; whatever happens, nothing else is left.

    ``broken`` is the name of a deliberate fault of the library, of ``broken.BROKEN``.

    Raises:
        DidNotHappenError, RuntimeError, TimeoutError, psycopg.Error, OSError: it could not be run.
    """
    with ExitStack() as all_of_it, uninterrupted_end():
        book = Book(directory / "nemesis.jsonl")
        all_of_it.callback(book.close)
        progress("servers")
        cluster = all_of_it.enter_context(Cluster(directory / "password"))
        troop = all_of_it.enter_context(Troop(cluster.ports, directory, seed, broken))
        cluster.moved = troop.lead_to
        stage = Stage(cluster, troop, book, Random(seed))
        all_of_it.callback(stage.forget_connection)
        about: dict[str, object] = {"seed": seed, "for_s": for_s, "postgresql": cluster.version}
        if broken:
            about["broken"] = broken
        book.write("about", None, **about)
        progress("replicas")
        troop.start()
        all_of_it.enter_context(Stalls(cluster, book))
        book.write("begin")
        progress(f"faults, for {for_s:g} s")
        try:
            stage.leader()
            on_the_server(broken, stage)
            Nemesis(stage, seed, progress).run(for_s)
            stage.leader()
            progress("peace: everybody is to come back")
            look_at_peace(stage)
        except NobodyLedError:  # that is for the checker to judge
            book.write("nobody_led")
        book.write("end")
        progress("shutting down, and looking at what is left")
        troop.end(book)
        look_at_remains(stage)
        _keep_ledger(stage, directory / "ledger.jsonl")


@contextmanager
def uninterrupted_end() -> Iterator[None]:
    """Hear no further signal to end from the end of this block on: what ends then is what must not be broken off."""
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def _keep_ledger(stage: Stage, path: Path) -> None:
    names = ("id", "token", "n", "timeline", "isolation", "committed_us")
    with stage.cluster.connect() as conn, path.open("w", encoding="utf-8") as file:
        for row in conn.execute(_LEDGER.encode()):
            file.write(json.dumps(dict(zip(names, row, strict=True))) + "\n")
