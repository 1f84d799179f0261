"""pgelect health asks a process that does not answer or never ends: it ends in its time, or when it is told to."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.commands import pgelect
from tests.support.runs import ROOT
from tests.support.waiting import scaled


@contextmanager
def mute() -> Iterator[socket.socket]:
    """A socket that is connected to, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(scaled(20))
        yield listener


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_however_long_it_would_have_waited(number: signal.Signals) -> None:
    with mute() as listener:
        port = str(listener.getsockname()[1])
        asking = subprocess.Popen(
            [sys.executable, "-m", "pgelect", "health", "--http-port", port, "--timeout", "3600"],
            cwd=ROOT, env=os.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            with listener.accept()[0]:
                asking.send_signal(number)
                assert asking.communicate(timeout=scaled(20)) == ("", "")
                assert asking.returncode == 128 + number
        finally:
            asking.kill()
            asking.wait()


def test_the_timeout_is_for_the_whole_answer_and_not_for_each_word() -> None:
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        with listener.accept()[0] as client, suppress(OSError):
            client.sendall(b"HTTP/1.1 200 OK\r\n")
            while not stop.wait(0.05):
                client.sendall(b"x: y\r\n")

    with mute() as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        said = pgelect("health", "--http-port", str(port), "--timeout", "0.5")
        stop.set()
        thread.join()
    assert (said.code, said.out) == (1, f"not healthy: no answer from http://127.0.0.1:{port}/livez within 0.5 s\n")


@pytest.mark.parametrize("timeout", ["inf", "1e30", "nan", "0"])
def test_a_timeout_that_is_none_is_a_usage_error(timeout: str) -> None:
    said = pgelect("health", "--http-port", "1", "--timeout", timeout)
    assert said.code == 2
    assert "Invalid value for '--timeout'" in said.err
