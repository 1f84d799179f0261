"""On a terminal the demo is live, heeds NO_COLOR and Ctrl-C, and gives the screen back."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.demos import ROOT, demo_place
from tests.support.terminal import Terminal

DEMO = ("-m", "pgelect", "demo")
CTRL_C = b"\x03"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
STYLE = re.compile(r"\x1b\[[0-9;]*m")
COLOUR = re.compile(r"\x1b\[[0-9;]*\b(3[0-8]|4[0-8]|9[0-7])[0-9;]*m")


@pytest.fixture
def place() -> Iterator[Path]:
    with demo_place() as directory:
        yield directory


@pytest.mark.slow
def test_it_shows_live_who_leads_and_then_what_happened(place: Path) -> None:
    with Terminal(*DEMO, env={"TMPDIR": str(place)}, cwd=str(ROOT)) as screen:
        assert screen.wait(60) == 0
    drawn = screen.text
    words = STYLE.sub("", drawn)
    assert words.count("LEADER") > 20, "the panel is drawn again and again"
    for seen in ("follower", "LEADER", "killed", "stopped"):
        assert re.search(rf"replica-\d +\d+ +{seen} ", words), seen
    assert COLOUR.search(drawn)
    assert drawn.rindex(SHOW_CURSOR) > drawn.rindex(HIDE_CURSOR)
    assert "All of it held" in drawn[drawn.rindex(SHOW_CURSOR) :]
    assert "freeze (SIGSTOP)" in drawn[drawn.rindex(SHOW_CURSOR) :]


@pytest.mark.parametrize("moment", ["Starting a private", "LEADER", "stopped"])
def test_ctrl_c_gives_the_screen_back(place: Path, moment: str) -> None:
    with Terminal(*DEMO, env={"TMPDIR": str(place)}, cwd=str(ROOT)) as screen:
        screen.wait_text(moment)
        screen.press(CTRL_C)
        assert screen.wait() == 130
    drawn = screen.text
    assert drawn.rindex(SHOW_CURSOR) > drawn.rindex(HIDE_CURSOR)
    assert drawn.rstrip().endswith("pgelect demo: SIGINT: ending the replicas and the server")
    assert "Traceback" not in drawn


def test_a_terminal_that_is_closed_leaves_nothing_behind(place: Path) -> None:
    with Terminal(*DEMO, env={"TMPDIR": str(place)}, cwd=str(ROOT)) as screen:
        screen.wait_text("LEADER")
        screen.hang_up()
        assert screen.wait() == 128 + signal.SIGHUP


def test_no_color_is_heeded(place: Path) -> None:
    with Terminal(*DEMO, env={"TMPDIR": str(place), "NO_COLOR": "1"}, cwd=str(ROOT)) as screen:
        screen.wait_text("replica-\\d leads .* ms")
        screen.press(CTRL_C)
        assert screen.wait() == 130
    assert "LEADER" in screen.text
    assert not COLOUR.search(screen.text)


def test_a_terminal_that_can_do_nothing_gets_plain_lines(place: Path) -> None:
    with Terminal(*DEMO, env={"TMPDIR": str(place), "TERM": "dumb"}, cwd=str(ROOT)) as screen:
        screen.wait_text("Act 1")
        screen.press(CTRL_C)
        assert screen.wait() == 130
    assert "\x1b" not in screen.text
