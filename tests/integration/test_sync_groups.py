"""Groups of pgelect.sync on a real server: a thread for each partition that is led, and whole programs that block."""

import asyncio
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from pgelect import FixedInterval, GroupState, LockKey, NotLeaderError, ShutdownError, StaleTokenError
from pgelect.sync import LeaderGroup, Term, fenced
from tests.support.processes import Worker
from tests.support.server import query, sessions, terminate
from tests.support.waiting import eventually_sync, scaled

NAMES = ("a", "b", "c", "d")
QUICK: dict[str, Any] = {
    "lease_s": 2.0,
    "health_interval_s": 0.5,
    "rebalance_interval_s": 1.0,
    "retry_strategy": FixedInterval(0.1),
}
UNRELEASED = "SELECT count(*) FROM pgelect.token WHERE released_at IS NULL"


def made(dsn: str, names: Sequence[str] = NAMES, **settings: Any) -> LeaderGroup[str]:
    return LeaderGroup(dsn, names=names, **{**QUICK, **settings})


def leads(group: LeaderGroup[str], number: int) -> None:
    eventually_sync(lambda: len(group.leading) == number, 20.0, f"it leads {number}")


def is_held(database: str, name: str) -> bool:
    key = LockKey.from_name(name)
    found = query(database, f"SELECT 1 FROM pg_locks WHERE classid = {key.classid} AND objid = {key.objid} AND granted")
    return found != []


def threads_of_groups() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pgelect")]


class Work:
    """A handler that works until its term ends, and what can be said of all its calls."""

    def __init__(self, at_work: Callable[[str, Term], object] = lambda _, term: term.ended.wait(scaled(30))) -> None:
        self.begun: list[tuple[str, Term]] = []
        self.ended: list[tuple[str, int]] = []
        self.most: Counter[str] = Counter()  # at once, by partition and of all
        self._now: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._at_work = at_work

    def __call__(self, partition: str, term: Term) -> None:
        with self._guard:
            self._now.update([partition, "all"])
            self.most |= self._now
            self.begun.append((partition, term))
        try:
            self._at_work(partition, term)
        finally:
            with self._guard:
                self._now.subtract([partition, "all"])
                self.ended.append((partition, term.token))

    def partitions(self) -> list[str]:
        return sorted(partition for partition, _ in self.begun)


@contextmanager
def working(group: LeaderGroup[str], work: Callable[[str, Term], object], **options: Any) -> Iterator[threading.Thread]:
    """Run lead() in another thread, inside of the group's block; it has returned at the end."""
    thread = threading.Thread(target=group.lead, args=[work], kwargs=options)
    with group:
        thread.start()
        yield thread
    thread.join(scaled(10))
    assert not thread.is_alive(), "lead() returns when the group stops"


# Leading


def test_two_groups_in_one_process_share_and_leave_nothing_behind(database: str) -> None:
    one, two = made(database), made(database)
    assert one.group == two.group
    first, second = Work(), Work()
    with working(one, first):
        eventually_sync(lambda: first.partitions() == [*NAMES])
        with working(two, second):
            leads(one, 2)
            leads(two, 2)
            assert {*one.leading} | {*two.leading} == {*NAMES}
            assert (one.members, one.share, two.state) == (2, 2, GroupState.MEMBER)
            assert one.trust_left_s > 0
            assert one.health().ready
            eventually_sync(lambda: second.partitions() == sorted(two.leading))
            assert sorted(partition for partition, _ in first.ended) == sorted(two.leading), "drained, then handed over"
            for partition, term in second.begun:
                assert two.is_leader(partition)
                assert not one.is_leader(partition)
                assert two.leading[partition] == term
                assert (term.key.name, term.is_current, term.ended.is_set()) == (partition, True, False)
                assert f"pgelect {partition}" in threads_of_groups()
        leads(one, 4)
    assert {term.ended.is_set() for _, term in first.begun} == {True}
    assert first.most.total() - first.most["all"] == 4, "one at a time for each partition"
    assert query(database, UNRELEASED) == [(0,)]
    eventually_sync(lambda: not sessions(database), message="no session is left")
    eventually_sync(lambda: threads_of_groups() == [])
    assert (one.state, dict(one.leading)) == (GroupState.STOPPED, {})


def test_a_release_waits_for_the_handler_of_that_partition_alone(database: str) -> None:
    seen: list[tuple[bool, bool]] = []

    def until_ended(partition: str, term: Term) -> None:
        term.ended.wait(scaled(30))
        if partition == "b":
            seen.append((group.is_leader("b"), is_held(database, "b")))

    group, work = made(database), Work(until_ended)
    with working(group, work):
        eventually_sync(lambda: len(work.begun) == 4)
        before = dict(group.leading)
        assert group.step_down("b", cooldown_s=0.3)
        assert seen == [(False, True)], "it led no more, and was still locked"
        assert not is_held(database, "b")
        assert not group.step_down("b")
        eventually_sync(lambda: len(work.begun) == 5, message="it is led again")
        assert [partition for partition, _ in work.ended] == ["b"]
        assert all(group.leading[name] is before[name] for name in ("a", "c", "d"))
        with pytest.raises(KeyError, match="no partition of this group"):
            group.step_down("z")


def test_a_handler_that_does_not_return_keeps_no_lock_and_is_not_run_twice(database: str) -> None:
    go_on = threading.Event()
    group, work = made(database, ["a"], drain_timeout_s=0.1), Work(lambda _, __: go_on.wait(scaled(30)))
    thread = threading.Thread(target=group.lead, args=[work])
    group.start()
    thread.start()
    eventually_sync(lambda: work.begun)
    group.step_down("a", cooldown_s=0)
    leads(group, 1)
    assert len(work.begun) == 1, "that of the new term waits"
    with pytest.raises(ShutdownError, match="duty"):
        group.shutdown(timeout_s=0.2)
    assert not is_held(database, "a")
    go_on.set()
    thread.join(scaled(10))
    assert not thread.is_alive()
    assert work.most["a"] == len(work.begun) == 1
    eventually_sync(lambda: threads_of_groups() == [])


def test_after_a_lost_session_handlers_see_it_and_those_of_new_terms_wait_for_them(database: str) -> None:
    slow = threading.Event()
    group, work = made(database), Work(lambda _, term: term.ended.wait(scaled(30)) and slow.wait(scaled(30)))
    with working(group, work):
        eventually_sync(lambda: len(work.begun) == 4)
        terms = [term for _, term in work.begun]
        terminate(database, *(session.pid for session in sessions(database)))
        eventually_sync(lambda: all(term.ended.is_set() for term in terms))
        leads(group, 4)
        assert len(work.begun) == 4
        slow.set()
        eventually_sync(lambda: len(work.begun) == 8)
    assert max(work.most[name] for name in NAMES) == 1
    tokens = dict(work.ended[:4])
    assert all(term.token > tokens[partition] for partition, term in work.begun[4:])


@pytest.mark.parametrize("error", [LookupError("no way"), SystemExit(3)])
def test_a_handler_that_raises_gives_its_partition_up_and_no_other(database: str, error: BaseException) -> None:
    def fail(partition: str, term: Term) -> None:
        if partition == "c":
            raise error
        term.ended.wait(scaled(30))

    heard: list[Exception] = []
    group, work = made(database), Work(fail)
    group.on_error(heard.append)
    with working(group, work):
        eventually_sync(lambda: work.partitions().count("c") == 3, message="it is tried again, after a while")
        assert [work.partitions().count(name) for name in ("a", "b", "d")] == [1, 1, 1]
        eventually_sync(lambda: len(heard) == 3)
    assert {error in {each, each.__cause__} for each in heard} == {True}


def test_no_more_handlers_at_once_than_allowed(database: str, caplog: pytest.LogCaptureFixture) -> None:
    enough = threading.Semaphore(0)
    group, work = made(database), Work(lambda _, __: enough.acquire(timeout=scaled(30)))
    with working(group, work, max_workers=2):
        eventually_sync(lambda: len(work.begun) == 2)
        leads(group, 4)
        enough.release(2)
        eventually_sync(lambda: len(work.begun) == 4)
        assert work.most["all"] == 2
        enough.release(2)
        eventually_sync(lambda: len(work.ended) == 4)
    assert caplog.text.count("max_workers") == 1
    with group, pytest.raises(ValueError, match="max_workers=0"):
        group.lead(work, max_workers=0)


# Ends that are asked for inside


@pytest.mark.parametrize("end", ["shutdown", "step_down", "step_down_all", "remove"])
def test_a_handler_may_end_its_own_term_and_those_of_others(database: str, end: str) -> None:
    """Holds off a handler that waits for a release that waits for the handler."""
    returned = threading.Event()
    ends: dict[str, Callable[[], object]] = {
        "shutdown": lambda: group.shutdown(60),
        "step_down": lambda: group.step_down("a", cooldown_s=3600),
        "step_down_all": lambda: group.step_down(cooldown_s=3600),
        "remove": lambda: group.remove("a", "b"),
    }

    def at_work(partition: str, term: Term) -> None:
        if partition == "a":
            eventually_sync(lambda: len(work.begun) == 4)
            ends[end]()
            assert term.ended.is_set()
            returned.set()
        term.ended.wait(scaled(30))

    left = {"shutdown": 0, "step_down": 3, "step_down_all": 0, "remove": 2}[end]
    group, work = made(database, drain_timeout_s=60.0), Work(at_work)
    with working(group, work) as thread:
        assert returned.wait(scaled(20))
        eventually_sync(lambda: sum(is_held(database, name) for name in NAMES) == left)
        assert len(group.leading) == left
        if end == "shutdown":
            thread.join(scaled(10))
            assert not thread.is_alive(), "lead() has returned"
    assert query(database, UNRELEASED) == [(0,)]


def test_a_handler_of_a_lost_term_may_shut_down(database: str) -> None:
    """Regression: nobody knew it as work any more, and the shutdown waited for who had called it."""
    returned = threading.Event()

    def at_work(_: str, term: Term) -> None:
        term.ended.wait(scaled(30))
        group.shutdown(60)
        returned.set()

    group, work = made(database, ["a"], drain_timeout_s=60.0), Work(at_work)
    with working(group, work):
        eventually_sync(lambda: work.begun)
        terminate(database, *(session.pid for session in sessions(database)))
        assert returned.wait(scaled(20))


@pytest.mark.parametrize("end", ["shutdown", "step_down"])
def test_a_callback_may_end_everything(database: str, end: str) -> None:
    """Also while the callbacks of other partitions wait for their turn in the one thread."""
    returned = threading.Event()
    group = made(database, drain_timeout_s=60.0)

    @group.on_acquired
    def leave() -> None:
        if not returned.is_set():
            leads(group, 4)
            group.shutdown() if end == "shutdown" else group.step_down(cooldown_s=3600)
            returned.set()

    with group:
        assert returned.wait(scaled(20))
        eventually_sync(lambda: not any(is_held(database, name) for name in NAMES))
    assert query(database, UNRELEASED) == [(0,)]


# The rest of its surface


def test_callbacks_come_in_pairs_in_one_thread(database: str) -> None:
    told: list[tuple[str, str, Term, threading.Thread]] = []

    def tell(what: str) -> Callable[[Term], None]:
        return lambda term: told.append((what, str(term.key.name), term, threading.current_thread()))

    group = made(database)
    group.on_acquired(tell("acquired"))
    group.on_released(tell("released"))
    with group:
        leads(group, 4)
        terms = dict(group.leading)
    assert len({thread for *_, thread in told}) == 1
    for name in NAMES:
        mine = [(what, term) for what, which, term, _ in told if which == name]
        assert [what for what, _ in mine] == ["acquired", "released"]
        assert all(term is terms[name] for _, term in mine)


def test_partitions_are_added_and_removed_before_it_runs_and_while_it_does(database: str) -> None:
    group, work = made(database, group="changing"), Work()
    group.add("e")
    group.remove("a")
    with working(group, work):
        eventually_sync(lambda: work.partitions() == ["b", "c", "d", "e"])
        group.add("f")
        group.remove("b", "c")
        assert not is_held(database, "b")
        assert sorted(partition for partition, _ in work.ended) == ["b", "c"]
        eventually_sync(lambda: sorted(group.leading) == ["d", "e", "f"])
        assert sorted(group.partitions) == ["d", "e", "f"]
        with pytest.raises(KeyError):
            group.remove("b")


async def test_it_works_with_pairs_of_numbers_in_a_program_that_runs_an_event_loop(database: str) -> None:
    with LeaderGroup(database, keys=[(7, 1), (7, -2)], **QUICK) as group:
        await asyncio.sleep(0)
        eventually_sync(lambda: set(group.leading) == {(7, 1), (7, -2)})
        with pytest.raises(RuntimeError, match="runs already"):
            group.start()
    with group:
        eventually_sync(lambda: len(group.leading) == 2, message="it can be started again")


def test_writes_are_fenced_by_the_partition_they_belong_to(database: str) -> None:
    query(database, "CREATE TABLE ledger (partition text)")
    with made(database) as group, psycopg.connect(database) as conn:
        leads(group, 4)
        with group.fence(conn, "a") as term:
            conn.execute("INSERT INTO ledger VALUES ('a')")
        assert term is group.leading["a"]
        with conn.transaction():
            group.check_fence(conn, "b")
            conn.execute("INSERT INTO ledger VALUES ('b')")
        group.step_down("a", cooldown_s=3600)
        with pytest.raises(NotLeaderError), group.fence(conn, "a"):
            pytest.fail("it does not lead that")
        with made(database):
            eventually_sync(lambda: query(database, UNRELEASED) == [(4,)], message="the other one leads it")
            with pytest.raises(StaleTokenError), fenced(conn, term.key, term.token):
                conn.execute("INSERT INTO ledger VALUES ('late')")
    assert query(database, "SELECT partition FROM ledger ORDER BY 1") == [("a",), ("b",)]


def test_what_it_cannot_do_it_says(database: str) -> None:
    async def later(*_: object) -> None: ...

    group = made(database)
    group.shutdown()
    for call in (group.step_down, lambda: group.lead(print)):
        with pytest.raises(NotLeaderError, match="call start"):
            call()
    with pytest.raises(TypeError, match="plain function"):
        group.lead(later)
    with pytest.raises(TypeError, match="plain function"):
        group.on_acquired(later)
    with pytest.raises(TypeError, match="shutdown_event"):
        made(database, shutdown_event=asyncio.Event())
    with pytest.raises(TypeError, match="one string"):
        LeaderGroup(database, names="abc")
    with group:
        leads(group, 4)
        with pytest.raises(ValueError, match="timeout_s"):
            group.shutdown(-1)
        assert len(group.leading) == 4, "nothing was changed"


# Whole programs

START = """
import json, os, signal, sys, threading, time
from pgelect.sync import LeaderGroup

def tell(event, **details):
    sys.stdout.write(json.dumps({"event": event, **details}) + "\\n")

def work(partition, term):
    tell("begun", partition=partition, token=term.token)
    term.ended.wait()
    tell("ended", partition=partition)

group = LeaderGroup(sys.argv[1], names=list("abcd"), lease_s=60.0)
"""


@pytest.fixture
def program(worker: Callable[..., Worker], database: str) -> Callable[[str], Worker]:
    return lambda code: worker("-W", "error", "-c", START + code, database)


def begun(one: Worker, number: int) -> None:
    eventually_sync(
        lambda: sum(told["event"] == "begun" for told in one.events) >= number, 20.0, f"{number} have begun"
    )


def is_released(database: str) -> bool:
    eventually_sync(lambda: sessions(database) == [])
    return query(database, UNRELEASED) == [(0,)]


def test_when_a_process_is_killed_another_takes_all_it_had(database: str, program: Callable[[str], Worker]) -> None:
    """Long before its lease ends."""
    victim = program("with group: group.lead(work)")
    begun(victim, 4)
    heir = program("with group: group.lead(work)")
    begun(heir, 2)
    victim.kill()
    begun(heir, 4)
    tokens = {told["partition"]: told["token"] for told in victim.events if told["event"] == "begun"}
    assert {told["partition"] for told in heir.events} == {*NAMES}
    assert all(told["token"] > tokens[told["partition"]] for told in heir.events)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 0)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_to_the_thread_that_leads_ends_all_handlers_and_releases(
    database: str, program: Callable[[str], Worker], number: int, status: int
) -> None:
    one = program("""
signal.signal(signal.SIGTERM, lambda number, frame: group.shutdown())
with group: group.lead(work)
""")
    begun(one, 4)
    one.signal(number)
    assert one.wait() == status
    assert sum(told["event"] == "ended" for told in one.events) == 4
    assert is_released(database)


def test_the_end_of_the_program_releases_everything(database: str, program: Callable[[str], Worker]) -> None:
    one = program("""
group.start()
threading.Thread(target=group.lead, args=[work], daemon=True).start()
while len(group.leading) < 4: time.sleep(0.01)
""")
    assert one.wait(20) == 0
    assert one.errors == []
    assert is_released(database)


def test_of_a_group_made_before_a_fork_each_child_may_be_a_member_and_a_fork_of_one_is_inert(
    database: str, program: Callable[[str], Worker]
) -> None:
    """As under a pre-fork server, whose workers load the application once, in their parent."""
    one = program("""
group.add("e")
children = []
for _ in range(2):
    if not (pid := os.fork()):
        group.start()
        while len(group.leading) == 0 or group.members < 2: time.sleep(0.01)
        if not (grandchild := os.fork()):
            tell("inert", leading=len(group.leading), state=group.state)
            calls = [group.start, group.step_down, group.shutdown, lambda: group.add("f"), lambda: group.lead(print)]
            for call in calls:
                try:
                    call()
                except Exception as error:
                    tell(type(error).__name__)
            sys.exit(0)
        _, status = os.waitpid(grandchild, 0)
        tell("member", identity=group.identity, status=status, partitions=len(group.partitions), name=group.group)
        os.read(0, 4)
        sys.exit(0)
    children.append(pid)
statuses = [os.waitpid(pid, 0)[1] for pid in children]
tell("done", statuses=statuses, name=group.group)
""")
    eventually_sync(lambda: sum(told["event"] == "member" for told in one.events) == 2, 20.0)
    one.tell("end\nend")
    assert one.wait(20) == 0, one.errors
    kinds = Counter(told["event"] for told in one.events)
    assert kinds == {"inert": 2, "ForkedError": 10, "member": 2, "done": 1}
    members = [told for told in one.events if told["event"] == "member"]
    assert len({told["identity"] for told in members}) == 2
    assert {(told["status"], told["partitions"]) for told in members} == {(0, 5)}
    assert len({told["name"] for told in one.events if "name" in told}) == 1
    assert [told for told in one.events if told["event"] == "inert"] == [
        {"event": "inert", "leading": 0, "state": "stopped"}
    ] * 2
    assert is_released(database)
