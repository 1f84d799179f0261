"""Whole programs with pgelect.sync: how they end, what signals do to them, and what a fork does."""

import signal
from collections.abc import Callable

import pytest

from tests.support.locks import Key
from tests.support.processes import Worker
from tests.support.server import lock_holders, query, sessions
from tests.support.waiting import eventually_sync

START = """
import json, os, signal, sys, threading, time
from pgelect.sync import LeaderLock

lock = LeaderLock(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
lock.on_released(lambda: print("told released"))
"""


@pytest.fixture
def program(worker: Callable[..., Worker], database: str, key: Key) -> Callable[[str], Worker]:
    return lambda code: worker("-W", "error", "-c", START + code, database, *map(str, key))


def is_released(database: str, key: Key) -> bool:
    """The term was marked as over, and nothing is left on the server."""
    eventually_sync(lambda: sessions(database) == [])
    assert lock_holders(database, *key) == []
    return query(database, "SELECT released_at IS NOT NULL FROM pgelect.token") == [(True,)]


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise LookupError", 1),
        ("threading.Thread(target=time.sleep, args=[0.2]).start()", 0),
    ],
    ids=["returns", "exits", "raises", "leaves a thread"],
)
def test_the_end_of_the_program_releases_the_lock(
    database: str, key: Key, program: Callable[[str], Worker], end: str, status: int
) -> None:
    one = program(f"lock.start(); lock.wait_for_leadership(20)\n{end}")
    assert one.wait() == status
    assert is_released(database, key)
    assert one.lines == ["told released"]
    assert [
        line for line in one.errors if "LookupError" not in line and "File" not in line and "Trace" not in line
    ] == []


def test_ctrl_c_in_a_duty_releases_the_lock_and_is_raised(
    database: str, key: Key, program: Callable[[str], Worker]
) -> None:
    one = program("""
with lock:
    lock.lead(lambda term: (print("leads"), time.sleep(60)))
""")
    one.wait_line("leads", 20)
    one.signal(signal.SIGINT)
    assert one.wait() == -signal.SIGINT
    assert is_released(database, key)
    assert one.errors[-1] == "KeyboardInterrupt"


def test_ctrl_c_while_another_leads_ends_the_wait(database: str, key: Key, program: Callable[[str], Worker]) -> None:
    first = program("with lock: lock.lead(lambda term: (print('leads'), term.ended.wait()))")
    first.wait_line("leads", 20)
    second = program("with lock: print('waits'); lock.lead(print)")
    second.wait_line("waits", 20)
    second.signal(signal.SIGINT)
    assert second.wait() == -signal.SIGINT
    assert len(sessions(database)) == 1, "that of the leader"


@pytest.mark.parametrize("at_work", [True, False])
def test_a_signal_handler_may_shut_the_lock_down(
    database: str, key: Key, program: Callable[[str], Worker], at_work: bool
) -> None:
    work = "lock.lead(lambda term: (print('leads'), term.ended.wait(60)))" if at_work else "lock.run()"
    start = "with lock:" if at_work else "lock.on_acquired(lambda: print('leads'))\nif True:"
    one = program(f"""
signal.signal(signal.SIGTERM, lambda number, frame: lock.shutdown())
{start}
    {work}
print("out")
""")
    one.wait_line("leads", 20)
    one.signal(signal.SIGTERM)
    assert one.wait() == 0
    assert "out" in one.lines
    assert is_released(database, key)


def test_a_signal_handler_may_shut_the_lock_down_wherever_it_strikes(
    database: str, key: Key, program: Callable[[str], Worker]
) -> None:
    """At each line that might hold a guard: the loop must wait for none, since the handler waits for the loop."""
    one = program("""
import psycopg

struck = at = 0

def strike(frame, event, _):
    global at
    if "pgelect" not in frame.f_code.co_filename:
        return None
    if frame.f_code.co_name not in ("_own", "_watch", "_forget", "begin"):
        return strike
    if event == "line":
        at += 1
        if at == struck:
            signal.raise_signal(signal.SIGTERM)
    return strike

def shut_down(*_):
    sys.settrace(None)
    lock.shutdown()

signal.signal(signal.SIGTERM, shut_down)
with psycopg.connect(sys.argv[1]) as conn:
    while struck <= at + 1:
        struck, at = struck + 1, 0
        lock.start()
        lock.wait_for_leadership(20)
        lock._seen.clear()  # as in a new term that nobody has looked at
        sys.settrace(strike)
        try:
            with lock.fence(conn):
                pass
        except Exception as error:
            assert type(error).__name__ in ("StaleTokenError", "NotLeaderError"), error
        sys.settrace(None)
        assert (lock.state == "stopped") == (at >= struck), struck
        lock.shutdown()
print(struck)
""")
    assert one.wait(40) == 0, one.errors
    assert int(one.lines[-1]) > 15
    assert is_released(database, key)


@pytest.mark.parametrize(
    "work",
    ["lock.run()", "with lock: soon(); lock.lead(duty)", "with lock: soon(); [*map(duty, lock.terms())]"],
    ids=["run", "lead", "terms"],
)
def test_a_signal_handler_may_end_it_wherever_the_beginning_stands(
    database: str, key: Key, program: Callable[[str], Worker], work: str
) -> None:
    """A deploy may stop what has only just begun: it raised an error, ran on, or waited for work that had not begun."""
    one = program(f"""
from contextlib import suppress
from pgelect import NotLeaderError

struck = at = 0
begins, waits = threading.Event(), threading.Event()

def strike(frame, event, _):
    global at
    code = frame.f_code
    if not code.co_filename.endswith(("sync.py", "_sync_life.py", "_loop_thread.py", "_callback_thread.py")):
        if code.co_filename.endswith("_sync_term.py") and code.co_name == "__iter__":
            waits.set()
        return None
    if code.co_name == "result" and frame.f_back.f_back.f_code.co_name == "run":
        waits.set()
    if code.co_qualname == "LoopThread.__init__":  # before that, nothing has begun that could be stopped
        begins.set()
    if event == "line" and begins.is_set() and not waits.is_set():
        at += 1
        if at == struck:
            waits.set()
            signal.raise_signal(signal.SIGTERM)
    return strike

def shut_down(*_):
    sys.settrace(None)
    lock.shutdown()

def soon():
    with suppress(NotLeaderError):
        lock.wait_for_leadership(20)

def duty(*_):
    assert waits.wait(10)
    if at < struck:
        lock.shutdown()

signal.signal(signal.SIGTERM, shut_down)
lock.on_acquired(duty)
while struck <= at + 1:
    struck, at = struck + 1, 0
    begins.clear(), waits.clear()
    sys.settrace(strike)
    {work}
    sys.settrace(None)
    assert lock.state == "stopped", struck
    assert threading.active_count() == 1, (struck, threading.enumerate())
print(struck)
""")
    assert one.wait(40) == 0, one.errors
    assert int(one.lines[-1]) > 15
    assert is_released(database, key)


LOGS = """
import logging

class Stream:
    def write(self, text):
        if "mine" in text:
            signal.raise_signal(signal.SIGTERM)
    def flush(self):
        pass

logging.basicConfig(level=logging.INFO, stream=Stream())
"""


def test_a_signal_handler_may_shut_the_lock_down_while_the_work_writes_to_the_log(
    database: str, key: Key, program: Callable[[str], Worker]
) -> None:
    """The lock logs, too: its loop waits for the log, which waits for the handler."""
    one = program(f"""{LOGS}
signal.signal(signal.SIGTERM, lambda number, frame: lock.shutdown())
with lock:
    lock.lead(lambda term: (logging.info("mine"), print(term.ended.wait(60))), repeat=True)
print("out")
""")
    assert one.wait(20) == 0
    assert [line for line in one.lines if "told" not in line] == ["True", "out"]
    assert is_released(database, key)


def test_a_shutdown_whose_loop_does_not_answer_ends_all_the_same(
    database: str, key: Key, program: Callable[[str], Worker]
) -> None:
    one = program(f"""{LOGS}
def shut_down(number, frame):
    try:
        lock.shutdown(timeout_s=0)
    except Exception as error:
        print(type(error).__name__, str(error).endswith("has interrupted."))

signal.signal(signal.SIGTERM, shut_down)
lock.start()
lock.wait_for_leadership(20)
logging.info("mine")
""")
    assert one.wait(20) == 0
    assert "ShutdownError True" in one.lines
    eventually_sync(lambda: sessions(database) == [])


def test_a_lock_made_before_a_fork_may_be_started_in_each_child(
    database: str, key: Key, program: Callable[[str], Worker]
) -> None:
    """As under a pre-fork server, whose workers load the application once, in their parent."""
    one = program("""
children = []
for _ in range(3):
    if not (pid := os.fork()):
        with lock:
            print(json.dumps({"token": lock.wait_for_leadership(20).token, "identity": lock.identity}))
        sys.exit(0)
    children.append(pid)
statuses = [os.waitpid(pid, 0)[1] for pid in children]
print(json.dumps({"statuses": statuses, "state": lock.state}))
""")
    assert one.wait(40) == 0
    *led, parent = one.events
    assert parent == {"statuses": [0, 0, 0], "state": "stopped"}
    assert len({each["token"] for each in led}) == 3
    assert len({each["identity"] for each in led}) == 3
    assert is_released(database, key)


def test_a_fork_of_a_program_that_leads_is_inert(database: str, key: Key, program: Callable[[str], Worker]) -> None:
    one = program("""
lock.start()
lock.wait_for_leadership(20)
if not (pid := os.fork()):
    print(json.dumps({"leads": lock.is_leader, "state": lock.state}))
    for call in (lock.start, lock.step_down, lock.shutdown, lambda: lock.lead(print)):
        try:
            call()
        except Exception as error:
            print(type(error).__name__)
    sys.exit(0)
print(os.waitpid(pid, 0)[1], lock.is_leader)
""")
    assert one.wait(20) == 0
    assert one.events == [{"leads": False, "state": "stopped"}]
    assert one.lines.count("ForkedError") == 4
    assert one.lines[-2:] == ["0 True", "told released"]
    assert is_released(database, key)
