"""The README's recipes for web servers, schedulers and periodic jobs, each in two processes, of which one works.

The leader loses its session in the middle of its work, or is killed, and the other one takes over.
"""

import os
import re
import shlex
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest

from pgelect import LockKey
from tests.support.processes import Worker
from tests.support.readme import BLOCKS, DSN, RECIPES
from tests.support.server import eventually_sync, lock_holders, lock_waiters, query, sessions, terminate

Start = Callable[..., Worker]
START_S = 30.0
"""For a process to begin: these import much."""


def recipe(name: str, database: str, **replaced: str) -> str:
    """The program, with that database in place of its own, and with what would make a test slow or needs a broker."""
    code = RECIPES[name]
    for old, new in ((DSN, repr(database)), *replaced.items()):
        assert old in code
        code = code.replace(old, new)
    return code


def file(directory: Path, name: str, code: str) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code, encoding="utf-8")
    return path


class Pair:
    """Two processes of a program that campaign for one lock."""

    def __init__(self, database: str, name: str, works: str, stops: str) -> None:
        self._database = database
        self._name = name
        key = LockKey.from_name(name)
        self._key = key.key1, key.key2
        self._works, self._stops = works, stops

    def elect(self, start: Callable[[], Worker], first: str = "1$") -> tuple[Worker, Worker]:
        """Start both; return the one that works, and the one that waits in the server's queue and does not."""
        both = start(), start()
        leader = eventually_sync(
            lambda: next((one for one in both if one.lines), None), timeout_s=START_S, message="one works"
        )
        assert leader is not None
        (follower,) = {*both} - {leader}
        leader.wait_line(f"{self._works} {first}")
        self.wait_for_a_follower()
        assert follower.lines == []
        return leader, follower

    def wait_for_a_follower(self) -> None:
        """Wait until one is in the server's queue."""
        eventually_sync(
            lambda: len(lock_waiters(self._database, *self._key)) == 1, timeout_s=START_S, message="one waits"
        )

    def end_session_of_the_leader(self, leader: Worker, follower: Worker, *, token: int = 2) -> None:
        """As an administrator would. The first stops, and the second one works."""
        (session,) = lock_holders(self._database, *self._key)
        terminate(self._database, session)
        follower.wait_line(f"{self._works} {token}$")
        leader.wait_line(self._stops)

    def end_cleanly(self, leader: Worker, follower: Worker, *, status: int = 0) -> None:
        """With SIGTERM. The leader stops before its lock is free, and the other one works again."""
        leader.signal(signal.SIGTERM)
        assert leader.wait() == status
        assert re.search(self._stops, "\n".join(leader.lines))
        follower.wait_line(f"{self._works} 3$")
        endings = "SELECT token, ending FROM pgelect.history WHERE name = %s ORDER BY token LIMIT 2"
        assert query(self._database, endings, self._name) == [(1, "lost"), (2, "released")]

    def end_the_last(self, leader: Worker, *, status: int = 0) -> None:
        """Nobody is left, and nothing of theirs on the server."""
        leader.signal(signal.SIGTERM)
        assert leader.wait() == status
        assert lock_holders(self._database, *self._key) == []
        eventually_sync(lambda: not sessions(self._database, "%"), message="no session is left")


# FastAPI


def answer(server: str, path: str) -> int:
    try:
        with urllib.request.urlopen(server + path, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def address(worker: Worker) -> str:
    """Where uvicorn listens, as it says in its log."""

    def said() -> str | None:
        found = re.search(r"running on (http://\S+)", "\n".join(worker.errors))
        return found and found[1]

    address = eventually_sync(said, timeout_s=START_S, message="uvicorn runs")
    assert address is not None
    return address


FAIL_WHEN_TOLD = """await asyncio.sleep(0.02)
            if pathlib.Path("broken").exists():
                pathlib.Path("broken").unlink()
                raise LookupError("no parcel")
"""


def test_fastapi_works_and_answers_as_the_leader_in_one_of_two_processes(
    database: str, worker: Start, tmp_path: Path
) -> None:
    """An error of its work ends the term and not the server; nor does a process then lead for ever and do nothing."""
    fails = {"await asyncio.sleep(1)  # here: what only one process may do\n": FAIL_WHEN_TOLD}
    file(tmp_path, "web.py", "import pathlib\n" + recipe("fastapi", database, **fails))
    pair = Pair(database, "deliveries", "delivers, with token", "delivers no more")
    one, other = pair.elect(lambda: worker("-m", "uvicorn", "web:app", "--port", "0", cwd=str(tmp_path)))
    first, second = address(one), address(other)

    def answers(path: str) -> tuple[int, int]:
        return answer(first, path), answer(second, path)

    assert answers("/leader") == (200, 503)
    assert answers("/livez") == (200, 200)
    eventually_sync(lambda: answers("/readyz") == (200, 200), message="both take part")
    pair.end_session_of_the_leader(one, other)
    assert answers("/leader") == (503, 200)
    pair.end_cleanly(other, one, status=-signal.SIGTERM)
    assert answer(first, "/leader") == 200
    file(tmp_path, "broken", "")
    one.wait_line("delivers, with token 4$")
    assert "LookupError: no parcel" in one.errors
    assert answer(first, "/livez") == 200
    pair.end_the_last(one, status=-signal.SIGTERM)


# APScheduler


CLEAN_UP = """try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.1)
        with psycopg.connect(DSN) as conn:
            held = "SELECT alive FROM pgelect.leaders WHERE token = %s"
            print("while the lock is held:", conn.execute(held, [term.token]).fetchone(), flush=True)
"""


def test_apscheduler_runs_its_jobs_on_the_leader_and_stops_and_awaits_one_that_runs(
    database: str, worker: Start
) -> None:
    long = {"seconds=60": "seconds=0.1", "await asyncio.sleep(5)  # here: what the job does\n": CLEAN_UP}
    program = f"import psycopg\nDSN = {database!r}\n{recipe('apscheduler', database, **long)}"
    pair = Pair(database, "jobs", "reports, with token", "report was cancelled: the term is over")
    one, other = pair.elect(lambda: worker("-c", program))
    pair.end_session_of_the_leader(one, other)
    pair.end_cleanly(other, one)
    assert "while the lock is held: (True,)" in other.lines
    pair.end_the_last(one)
    assert sum(line.startswith("reports") for line in one.lines) == 2, "one in each of its terms, for it takes long"


# Django

SETTINGS = """
SECRET_KEY = "of a test"
INSTALLED_APPS = ["shop"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.postgresql", {}}}}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
"""
MODELS = """
from django.db import models


class Order(models.Model):
    shipped_with = models.BigIntegerField(null=True)
"""


@pytest.fixture
def django(database: str, worker: Start, tmp_path: Path) -> Callable[[], Worker]:
    """A minimal project around the command; starts it."""
    wanted = {"dbname": "NAME", "host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD"}
    given = {wanted[k]: v for k, v in psycopg.conninfo.conninfo_to_dict(database).items() if k in wanted}
    file(tmp_path, "settings.py", SETTINGS.format(", ".join(f"{k!r}: {str(v)!r}" for k, v in given.items())))
    file(tmp_path, "shop/__init__.py", "")
    file(tmp_path, "shop/models.py", MODELS)
    file(tmp_path, "shop/management/commands/ship_orders.py", recipe("django", database, **{"wait(1)": "wait(0.05)"}))
    query(database, "CREATE TABLE shop_order (id bigserial PRIMARY KEY, shipped_with bigint)")
    environment = {"DJANGO_SETTINGS_MODULE": "settings"}
    return lambda: worker("-W", "error", "-m", "django", "ship_orders", cwd=str(tmp_path), env=environment)


def test_a_management_command_of_django_works_in_one_of_two_processes_and_under_its_token(
    database: str, django: Callable[[], Worker]
) -> None:
    last = "SELECT shipped_with FROM shop_order ORDER BY id DESC LIMIT 1"
    order = "INSERT INTO shop_order (shipped_with) VALUES (NULL)"

    def ships(token: int) -> None:
        query(database, order)
        eventually_sync(lambda: query(database, last) == [(token,)], message="it is shipped")

    pair = Pair(database, "shipping", "ships, with token", "ships no more")
    one, other = pair.elect(django)
    ships(1)
    pair.end_session_of_the_leader(one, other)
    ships(2)
    pair.end_cleanly(other, one)
    ships(3)
    assert other.errors == []
    known = len(one.errors)
    query(database, f"WITH usurped AS (UPDATE pgelect.token SET token = 9) {order}")
    eventually_sync(
        lambda: any("the duty ended with its term" in line for line in one.errors[known:]), message="it is refused"
    )
    pair.end_the_last(one)
    assert query(database, last) != [(3,)]


# Celery

MEMORY = {'"amqp://localhost"': '"memory://"', "60.0": "0.1"}
SENDS = "Scheduler: Sending due task report (app.report)"


def sent(worker: Worker) -> int:
    return sum(SENDS in line for line in worker.errors)


def sends_more(worker: Worker) -> None:
    before = sent(worker)
    eventually_sync(lambda: sent(worker) > before, timeout_s=START_S, message="it sends tasks")


def test_celery_beats_in_one_of_two_processes_be_it_started_by_the_command_or_in_python(
    database: str, worker: Start, tmp_path: Path
) -> None:
    file(tmp_path, "app.py", recipe("celery", database, **MEMORY))
    (line,) = (block.code for block in BLOCKS if block.marker == "celery beat")
    pgelect, *words = shlex.split(line)
    assert (pgelect, words[0], words[2:4]) == ("pgelect", "run", ["--", "celery"])
    programs = {"PGELECT_DSN": database, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    pair = Pair(database, words[1], "beats, with token", "beats no more")

    command = worker("-m", "pgelect", *words, cwd=str(tmp_path), env=programs)
    sends_more(command)
    children = psutil.Process(command.pid).children(recursive=True)
    assert any("celery" in " ".join(child.cmdline()) for child in children)
    program = worker("app.py", cwd=str(tmp_path))
    pair.wait_for_a_follower()
    assert (program.lines, sent(program)) == ([], 0)

    command.kill()
    program.wait_line("beats, with token 2$", START_S)
    sends_more(program)
    psutil.wait_procs(children, timeout=10)
    assert [child for child in children if child.is_running()] == []

    pair.end_session_of_the_leader(program, program, token=3)
    sends_more(program)
    pair.end_the_last(program)
    assert program.lines == [f"beats{how}" for token in (2, 3) for how in (f", with token {token}", " no more")]
    kept = {path.name for path in tmp_path.iterdir()} - {"app.py", "__pycache__"}
    assert kept == set(), "no file of what was sent"


# A periodic job


FAIL_THE_SECOND_TIME = """
    if (await (await conn.execute("SELECT count(*) FROM reports")).fetchone())[0] > 1:
        raise LookupError
"""


def test_a_periodic_job_runs_once_for_each_period_whoever_leads(database: str, worker: Start) -> None:
    program = recipe("periodic", database, **{"seconds=60": "days=1"})
    failing = recipe("periodic", database, **{"seconds=60": "seconds=1", "# here: the job\n": FAIL_THE_SECOND_TIME})
    one = worker("-c", failing)
    assert one.wait(START_S) == 1
    assert one.errors[-1] == "LookupError"
    assert one.lines == ["token 1: reported"], "in one period, and in the next one it failed"
    done = query(database, "SELECT period, token FROM reports")
    assert done == query(database, "DELETE FROM last_run RETURNING period, 1::bigint"), (
        "the claim of the next is undone"
    )

    pair = Pair(database, "reports", "token", "")
    leader, follower = pair.elect(lambda: worker("-W", "error", "-c", program), "2: reported")
    leader.kill()
    follower.wait_line("token 3: another has reported")
    pair.end_the_last(follower)
    assert query(database, "SELECT token FROM reports ORDER BY token") == [(1,), (2,)]
    assert (leader.errors, follower.errors) == ([], [])
