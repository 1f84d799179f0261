"""The keeper of a command: it ends the whole group when it is told to, when trust runs out, when nobody is there."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from pgelect import LockKey, Term
from pgelect.cli import run_keeper
from pgelect.cli.run_campaign import environment_of
from pgelect.cli.run_command import Command, CommandError, TooLateError
from pgelect.cli.run_keeper import now
from tests.support.runs import is_gone
from tests.support.waiting import eventually

LATER = float("inf")
Start = Callable[..., Awaitable[Command]]


@pytest_asyncio.fixture
async def start() -> AsyncIterator[Start]:
    """Start shell commands; what they write to file $1 is how they tell."""
    started: list[Command] = []

    async def begin(shell: str, place: Path, *, grace_s: float = 30.0, loss_grace_s: float = 30.0) -> Command:
        arguments = ["sh", "-c", shell, "sh", str(place)]
        started.append(
            await Command.start(arguments, os.environ, trusted_until=LATER, grace_s=grace_s, loss_grace_s=loss_grace_s)
        )
        return started[-1]

    yield begin
    for command in started:
        command.close()
        await command.gone()


async def said(place: Path) -> str:
    return await eventually(lambda: place.read_text().strip() if place.exists() else "")


async def test_it_gets_term_when_trust_runs_out_and_kill_after_the_short_grace(start: Start, tmp_path: Path) -> None:
    """Nobody says stop: a run that is stopped, or hangs, cannot."""
    told = tmp_path / "told"
    code = "trap 'echo term >>$1' TERM; echo ready >$1; while :; do sleep 0.02; done"
    command = await start(code, told, loss_grace_s=2.0)
    assert await said(told) == "ready"
    command.trust_until(now() + 0.2)
    assert await command.gone() == -signal.SIGKILL
    assert told.read_text() == "ready\nterm\n"
    assert not command.exited_by_itself


async def test_trust_that_is_renewed_keeps_it_running(start: Start, tmp_path: Path) -> None:
    command = await start("sleep 1000", tmp_path)
    for _ in range(10):
        command.trust_until(now() + 2.0)
        await asyncio.sleep(0.02)
    assert not is_gone(command.pid)
    command.trust_until(now() - 1.0)
    assert await command.gone() == -signal.SIGTERM


async def test_what_outlives_the_command_in_its_group_has_the_grace_and_no_more(start: Start, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = await start("(trap '' TERM; echo $$ >$1; sleep 1000) & exit 4", told, grace_s=0.1)
    assert await command.gone() == 4
    assert command.exited_by_itself
    with pytest.raises(ProcessLookupError):
        os.killpg(command.pid, 0)


async def test_what_is_stopped_hears_term_too(start: Start, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = await start("trap 'echo term >$1; exit 3' TERM; kill -STOP $$; while :; do sleep 0.02; done", told)
    await eventually(lambda: Path(f"/proc/{command.pid}/stat").read_text().split()[2] == "T", message="it is stopped")
    command.stop(30.0)
    assert await command.gone() == 3
    assert told.read_text() == "term\n"


async def test_the_shortest_grace_counts(start: Start, tmp_path: Path) -> None:
    command = await start("trap '' TERM; echo >$1; while :; do sleep 0.02; done", told := tmp_path / "told")
    await eventually(told.exists)
    command.stop(1000.0)
    command.stop(0.0)
    command.stop(1000.0)
    assert await command.gone() == -signal.SIGKILL


async def test_it_starts_as_from_a_shell_not_as_a_child_of_python(start: Start, tmp_path: Path) -> None:
    """Python ignores SIGPIPE, and whoever starts a program from it hands that on: `yes | head` would never end."""
    command = await start("(yes; echo $? >$1) | head -n 1 >/dev/null; exit 0", told := tmp_path / "told")
    assert await command.gone() == 0
    assert await said(told) == str(128 + signal.SIGPIPE)


async def test_it_inherits_no_channel_and_leads_a_session_of_its_own(start: Start, tmp_path: Path) -> None:
    look = f"{sys.executable} -c 'import os; print(os.getpgrp(), os.getsid(0), *sorted(os.listdir(\"/proc/self/fd\")))'"
    command = await start(f"{look} >$1.new; mv $1.new $1; exit 0", told := tmp_path / "told")
    assert await command.gone() == 0
    group, session, *open_files = (await said(told)).split()
    assert int(group) == command.pid
    assert int(session) != os.getsid(0)
    assert len(open_files) == 4, "three streams, and the directory that is listed"


async def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="there is no such command") as refused:
        await Command.start([str(tmp_path / "nothing")], os.environ, trusted_until=LATER, grace_s=1.0, loss_grace_s=1.0)
    assert refused.value.code == 127


async def test_a_script_without_its_interpreter_is_not_said_to_be_missing(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(CommandError, match="the interpreter that it names does not exist"):
        await Command.start([str(script)], os.environ, trusted_until=LATER, grace_s=1.0, loss_grace_s=1.0)


async def test_nothing_is_started_when_trust_has_run_out(tmp_path: Path) -> None:
    arguments = ["touch", str(tmp_path / "told")]
    with pytest.raises(TooLateError):
        await Command.start(arguments, os.environ, trusted_until=now(), grace_s=1.0, loss_grace_s=1.0)
    assert not (tmp_path / "told").exists()


async def test_a_command_whose_run_says_nothing_more_has_the_trust_it_was_started_with(tmp_path: Path) -> None:
    """A fault of ours: a run that was stopped right after the start had told the keeper no deadline yet."""
    command = await Command.start(
        ["sleep", "1000"], os.environ, trusted_until=now() + 0.5, grace_s=30.0, loss_grace_s=30.0
    )
    assert await command.gone() == -signal.SIGTERM


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    arguments = ["sh", "-c", "echo $$ >$1; sleep 1000", "sh", str(place)]
    for delay_s in (0.0, 0.005, 0.02):
        starting = asyncio.create_task(
            Command.start(arguments, os.environ, trusted_until=LATER, grace_s=1.0, loss_grace_s=1.0)
        )
        await asyncio.sleep(delay_s)
        starting.cancel()
        await asyncio.wait({starting})
        if not starting.cancelled():
            starting.result().close()
            await starting.result().gone()
    if place.exists() and (pid := place.read_text()):  # it may have ended between the two
        await eventually(lambda: is_gone(int(pid)))


def test_the_environment_says_which_term_it_works_for_and_nothing_of_an_outer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGELECT_TOKEN", "99")
    monkeypatch.setenv("PGELECT_NAME", "outer")
    monkeypatch.setenv("PGELECT_LEASE_S", "30")
    at = datetime(2026, 1, 2, tzinfo=UTC)
    term = Term(0, LockKey(1, -2), "me", at, {}, lambda: True, lambda: asyncio.sleep(0))
    before = {name for name in os.environ if name.startswith("PGELECT_")} - {"PGELECT_TOKEN", "PGELECT_NAME"}
    told = {name: value for name, value in environment_of(term).items() if name.startswith("PGELECT_")}
    assert {name: value for name, value in told.items() if name not in before - {"PGELECT_LEASE_S"}} == {
        "PGELECT_LEASE_S": "30",
        "PGELECT_KEY1": "1",
        "PGELECT_KEY2": "-2",
        "PGELECT_HOLDER": "me",
        "PGELECT_ACQUIRED_AT": "2026-01-02T00:00:00Z",
    }


@pytest.mark.parametrize("forked", [True, False])
async def test_a_keeper_that_is_killed_at_the_start_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: bool
) -> None:
    """Holds off a command that runs on because its pid was not known yet."""
    told, keeper = tmp_path / "told", tmp_path / "keeper.py"
    keeper.write_text(f"""
import os, subprocess, sys
if {forked}:
    command = subprocess.Popen(["sleep", "100"], process_group=0)
    os.write(int(sys.argv[1]), f"forked {{command.pid}}\\n".encode())
    print(command.pid, file=open({str(told)!r}, "w"))
os.kill(os.getpid(), 9)
""")
    monkeypatch.setattr(run_keeper, "__file__", str(keeper))
    starting = Command.start(["sleep", "100"], os.environ, trusted_until=LATER, grace_s=30.0, loss_grace_s=30.0)
    if not forked:
        with pytest.raises(CommandError, match="was killed"):
            await starting
        return
    command = await starting
    assert await command.gone() == -signal.SIGKILL
    assert str(command.pid) == await said(told)
    await eventually(lambda: is_gone(command.pid))
