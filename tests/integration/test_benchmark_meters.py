"""The meters of the benchmarks show what was used: round trips on the wire, and time on the processor."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pytest

from benchmarks.meters import cpu_s, memory, tree_cpu_s
from benchmarks.relay import Relay, Traffic
from tests.support.waiting import eventually_sync


@pytest.fixture
def relay() -> Iterator[Relay]:
    """A relay to a server that answers every byte with two."""

    def answer(conn: socket.socket) -> None:
        with conn, suppress(OSError):
            while data := conn.recv(1024):
                for _ in data:
                    conn.sendall(b"..")

    def serve() -> None:
        with suppress(OSError):
            while True:
                conn, _ = listening.accept()
                Thread(target=answer, args=(conn,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=serve, daemon=True).start()
        with Relay(*listening.getsockname()) as found:
            yield found
        listening.shutdown(socket.SHUT_RDWR)


def ask(conn: socket.socket, question: bytes) -> None:
    conn.sendall(question)
    left = 2 * len(question)
    while left:
        left -= len(conn.recv(left))


def test_an_answer_and_what_was_asked_before_it_are_one_round_trip(relay: Relay) -> None:
    with socket.create_connection(("127.0.0.1", relay.lane("busy"))) as busy:
        for _ in range(5):
            ask(busy, b"?")
        ask(busy, b"???")
        assert relay.read() == {"busy": Traffic(trips=6, connects=1, now=1)}
        for _ in range(3):
            busy.sendall(b"?")  # and the answers are not awaited
        assert busy.recv(1)
        assert 7 <= relay.read()["busy"].trips <= 9


def test_lanes_are_counted_apart_and_so_are_connections_that_have_ended(relay: Relay) -> None:
    one, other = relay.lane("one"), relay.lane("other")
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", one)) as conn:
            ask(conn, b"?")
    with socket.create_connection(("127.0.0.1", other)) as conn:
        ask(conn, b"??")
        eventually_sync(lambda: relay.read()["one"].now == 0, 5.0, "the relay saw the ends")
        assert relay.read() == {"one": Traffic(3, 3, 0), "other": Traffic(1, 1, 1)}
        assert relay.ports("one") == []
        assert len(relay.ports("other")) == 1


def test_a_client_of_a_server_that_is_gone_is_not_left_waiting(relay: Relay) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        nobody = listening.getsockname()
    with Relay(*nobody) as to_nobody, socket.create_connection(("127.0.0.1", to_nobody.lane("lost"))) as conn:
        conn.settimeout(10.0)
        with suppress(ConnectionResetError):
            assert conn.recv(1) == b""


def test_time_on_the_processor_is_seen_of_children_that_run_and_of_those_that_have_ended() -> None:
    busy = "import time\nuntil = time.process_time() + 0.3\nwhile time.process_time() < until: pass\n"
    parent = "import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', sys.argv[1]])\nprint(flush=True)\n"
    lasting = f"{busy}time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", lasting]) as alone:
        eventually_sync(lambda: cpu_s(alone.pid) >= 0.3, 20.0, "the process was busy")
        assert 0 < memory([alone.pid]).uss <= memory([alone.pid]).pss <= memory([alone.pid]).rss
        alone.kill()
        alone.wait()
    assert cpu_s(alone.pid) == 0.0
    assert memory([alone.pid]).rss == 0.0
    run_on = f"{parent}time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", run_on, busy], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert tree_cpu_s(process.pid) >= 0.29
        process.kill()


def test_the_clock_of_a_process_counts_what_it_runs() -> None:
    before, before_s = cpu_s(os.getpid()), time.process_time()
    while time.process_time() < before_s + 0.05:
        pass
    assert cpu_s(os.getpid()) - before == pytest.approx(0.05, abs=0.03)
