"""One replica: a process that campaigns with the public API, writes while it leads, and keeps a book.

It reads commands from standard input: ``step_down``, and ``rest``, which is to write, but to hold no transaction open.
At the end of the input, or on SIGTERM, it shuts down: exit status 0 when that was clean, 3 when the lock could not be
shut down in time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from psycopg.conninfo import make_conninfo
from typing_extensions import override

from benchmarks.chaos import broken, plan
from benchmarks.chaos.book import Book
from benchmarks.chaos.looking import Looking
from benchmarks.chaos.partitions import Partitions
from benchmarks.chaos.writer import Writer
from benchmarks.process import report
from pgelect import ExponentialBackoff, LeaderGroup, LeaderLock, LockState, ShutdownError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect import Term


def lock_of(character: plan.Character, process: str, dsn: Callable[[], str]) -> LeaderLock:
    """Make the lock of a replica."""
    return LeaderLock(
        dsn,
        name=plan.LOCK_NAME,
        identity=process,
        health_interval_s=plan.HEALTH_INTERVAL_S,
        lease_s=character.lease_s,
        reconnect_grace_s=character.grace_s,
        drain_timeout_s=plan.DRAIN_S,
        retry_strategy=ExponentialBackoff(plan.BACKOFF_BASE_S, plan.BACKOFF_MAX_S),
    )


def dsn_of(ports: list[int], password_file: Path) -> Callable[[], str]:
    """Give a callable that makes the connection string, with the password of the moment."""

    def dsn() -> str:
        return make_conninfo(
            "",
            host=",".join("127.0.0.1" for _ in ports),
            port=",".join(map(str, ports)),
            dbname=plan.DATABASE,
            user=plan.ROLE,
            password=password_file.read_text(encoding="utf-8"),
            connect_timeout=plan.CONNECT_TIMEOUT_S,
        )

    return dsn


class BookHandler(logging.Handler):
    """Writes what is logged into the book: what remains on standard error is then a complaint of Python itself."""

    def __init__(self, book: Book) -> None:
        super().__init__(logging.WARNING)
        self._book = book

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self._book.write("log", logger=record.name, level=record.levelname, text=self.format(record)[-2000:])


def keep_book(lock: LeaderLock, book: Book, ended: Callable[[int], None]) -> None:
    """Write down what the callbacks hear."""
    last_token = 0

    @lock.on_acquired
    def acquired(term: Term) -> None:
        nonlocal last_token
        last_token = term.token
        report("leads", 0.0, token=last_token)
        book.write("acquired", token=term.token, minted_us=round(term.acquired_at.timestamp() * 1e6))

    @lock.on_lost
    def lost(term: Term) -> None:
        book.write("lost", token=term.token)
        ended(term.token)

    @lock.on_released
    def released(term: Term) -> None:
        book.write("released", token=term.token)
        ended(term.token)

    @lock.on_state_change
    def changed(before: LockState, after: LockState) -> None:
        book.write("state", before=before.value, after=after.value)
        if before is LockState.LEADER:
            report("leads", 0.0, token=0)
        elif (before, after) == (LockState.RECONNECTING, LockState.LEADER):
            report("leads", 0.0, token=last_token)

    @lock.on_acquire_failed
    def not_acquired(error: Exception | None) -> None:
        if error is not None:
            book.write("not_acquired", type=type(error).__name__, text=str(error)[:300])

    lock.on_error(lambda error: book.write("error", type=type(error).__name__, text=str(error)[:300]))


async def replica(given: dict[str, Any]) -> int:
    process, character = given["process"], plan.Character(**given["character"])
    password_file = Path(given["password_file"])
    book = Book(Path(given["book"]))
    patch("pgelect.lock.PLACES", plan.PLACES).start()
    broken.in_this_process(given["broken"])
    election_dsn = broken.dsn(given["broken"], dsn_of(given["election_ports"], password_file))
    lock = lock_of(character, process, election_dsn)
    partitions = Partitions(character, process, election_dsn, book)
    looking = Looking(lock, book, partitions.look)
    rng = Random(f"{given['seed']} {process}")
    writer = Writer(process, lock, looking, dsn=dsn_of(given["writer_ports"], password_file), book=book, rng=rng)
    keep_book(lock, book, writer.term_ended)
    logging.getLogger().addHandler(BookHandler(book))
    bounds = lock.bounds()
    book.write(
        "start",
        process=process,
        replica=character.name,
        lease_s=character.lease_s,
        grace_s=character.grace_s or 0.0,
        bounds={name: getattr(bounds, name).seconds for name in bounds.__slots__},
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the program that started us
    # What runs first after SIGCONT, before the event loop does: trust must have ended by itself.
    signal.signal(signal.SIGCONT, lambda *_: looking.look())
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    with looking:
        await lock.start()
        await partitions.group.start()
        report("started", 0.0)
        writing = loop.create_task(writer.run(stop))
        listening = loop.create_task(_obey(commands, lock, writer, book, stop))
        await stop.wait()
        status = await _end(lock, partitions.group, book)
        await writing
        listening.cancel()
    book.write("ended", status=status)
    return status


async def _obey(
    commands: asyncio.StreamReader, lock: LeaderLock, writer: Writer, book: Book, stop: asyncio.Event
) -> None:
    while line := await commands.readline():
        if line.strip() == b"rest":
            writer.rest()
        if line.strip() == b"step_down":
            done = await lock.step_down()
            book.write("stepped_down", done=done)
    stop.set()


async def _end(lock: LeaderLock, group: LeaderGroup[str], book: Book) -> int:
    book.write("ending")
    try:
        await lock.shutdown()
        await group.shutdown()
    except ShutdownError as error:
        book.write("error", type=type(error).__name__, text=str(error))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(replica(json.loads(sys.argv[1]))))
