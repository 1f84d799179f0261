"""pgelect run keeps a command running while it leads, and only then: start, environment, exit codes, a clean end."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pgelect import LockKey
from tests.support.processes import Worker
from tests.support.runs import DEAF, FAMILY, PATIENT, Run, all_gone, is_gone, leads, runs
from tests.support.server import lock_holders, query, sessions
from tests.support.waiting import eventually_sync

JOB = LockKey.from_name("job")


@pytest.fixture
def run(worker: Callable[..., Worker], database: str) -> Run:
    return runs(worker, database)


def holders(database: str) -> list[int]:
    return lock_holders(database, JOB.key1, JOB.key2)


def test_the_command_knows_its_term_and_its_exit_code_is_returned(run: Run, database: str) -> None:
    told = '"$PGELECT_NAME" "$PGELECT_KEY1" "$PGELECT_KEY2" "$PGELECT_TOKEN" "$PGELECT_HOLDER" "$PGELECT_ACQUIRED_AT"'
    one = run("job", "--identity", "me", shell=f'for word in {told}; do echo "$word"; done; exit 7')
    assert one.wait(20) == 7
    [(token, at)] = query(database, "SELECT token, acquired_at AT TIME ZONE 'UTC' FROM pgelect.token")
    assert one.lines == ["job", str(JOB.key1), str(JOB.key2), str(token), "me", f"{at.isoformat()}Z"]
    assert query(database, "SELECT released_at IS NOT NULL FROM pgelect.token") == [(True,)], "a clean release"
    assert holders(database) == []
    eventually_sync(lambda: not sessions(database), message="no session is left")


def test_what_the_command_leaves_behind_ends_with_it(run: Run) -> None:
    one = run("job", shell=f"{FAMILY} exit 0")
    family = leads(one)
    assert one.wait(20) == 0
    assert all_gone(family)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_command_and_only_then_the_lock_is_freed(
    run: Run, database: str, number: signal.Signals
) -> None:
    one = run("job", shell=f"trap 'sleep 0.4; echo drained; kill $child; exit 5' TERM; {PATIENT}")
    family = leads(one)
    one.signal(number)
    eventually_sync(lambda: not holders(database), message="the lock is free")
    assert all_gone(family), "it was freed after the end of the command"
    assert one.wait() == 5
    assert one.lines[-1] == "drained"
    assert query(database, "SELECT released_at IS NOT NULL FROM pgelect.token") == [(True,)]


def test_a_command_that_does_not_heed_is_killed_after_the_grace_with_all_its_group(run: Run, database: str) -> None:
    one = run("job", "--drain", "0.3", shell=DEAF)
    family = leads(one)
    one.signal(signal.SIGTERM)
    assert one.wait() == 128 + signal.SIGTERM
    assert all_gone(family)
    assert holders(database) == []


def test_a_second_signal_does_not_wait_for_the_grace(run: Run) -> None:
    one = run("job", "--drain", "1000", shell=DEAF)
    family = leads(one)
    one.signal(signal.SIGINT)
    eventually_sync(lambda: any("releasing" in line for line in one.errors), message="it drains")
    assert not is_gone(family["pid"])
    one.signal(signal.SIGINT)
    assert one.wait() == 128 + signal.SIGINT
    assert all_gone(family)


def test_other_signals_are_passed_on(run: Run) -> None:
    ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and so it would be in the command
    try:
        traps = "trap 'echo hup' HUP; trap 'echo usr1' USR1; trap 'kill $child; exit 0' USR2"
        one = run("job", shell=f"{traps}; {PATIENT}")
    finally:
        signal.signal(signal.SIGHUP, ours)
    leads(one)
    for number, word in ((signal.SIGHUP, "hup"), (signal.SIGUSR1, "usr1")):
        one.signal(number)
        one.wait_line(f"^{word}$")
    one.signal(signal.SIGUSR2)
    assert one.wait() == 0


@pytest.mark.parametrize("word", ["no-such-command", ""])
def test_a_command_that_does_not_exist_is_told_before_anybody_leads(run: Run, database: str, word: str) -> None:
    one = run("job", "--", word)
    assert one.wait(20) == 127
    assert one.errors == [f"pgelect run: cannot start {word!r}: there is no such command"]
    assert query(database, "SELECT to_regnamespace('pgelect')") == [(None,)]


def test_a_command_that_cannot_be_executed_ends_the_term_at_once(run: Run, database: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program\n")
    one = run("job", "--", str(tmp_path / "text"))
    assert one.wait(20) == 126
    assert f"pgelect run: cannot start '{tmp_path}/text': Permission denied" in one.errors
    assert holders(database) == []


def test_a_command_killed_by_a_signal_is_told_as_shells_do(run: Run) -> None:
    assert run("job", shell="kill -9 $$").wait(20) == 137


def test_with_restart_the_command_runs_again_in_the_same_term(run: Run) -> None:
    one = run("job", "--restart", shell='echo "{\\"token\\": $PGELECT_TOKEN}"')
    eventually_sync(lambda: len(one.events) > 1, 20, "it runs again")
    assert one.events[0] == one.events[1]
    one.signal(signal.SIGTERM)
    assert one.wait() in {0, 143}


def test_standard_input_is_passed_through(run: Run) -> None:
    one = run("job", shell="read line; echo got $line")
    one.tell("something")
    assert one.wait(20) == 0
    assert one.lines == ["got something"]
