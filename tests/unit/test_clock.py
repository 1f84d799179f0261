"""The clocks: forward only, and the system's one counts suspended time where it can."""

import math
import sys
import time

import pytest

from pgelect._engine import clock as module
from pgelect._engine.clock import Clock, SystemClock
from pgelect.testing.clock import FakeClock


def test_the_system_clock_goes_forward_at_the_rate_of_monotonic_time() -> None:
    clock: Clock = SystemClock()
    before, monotonic_before = clock.now(), time.monotonic()
    while time.monotonic() - monotonic_before < 0.02:
        assert clock.now() >= before
    assert clock.now() - before == pytest.approx(time.monotonic() - monotonic_before, abs=0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="CLOCK_BOOTTIME is Linux's")
def test_the_system_clock_counts_suspended_time() -> None:
    assert SystemClock().now() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=0.05)


def test_without_such_a_clock_it_is_plain_monotonic_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLOCK", None)
    assert SystemClock().now() == pytest.approx(time.monotonic(), abs=0.05)


def test_a_fake_clock_stands_still_until_it_is_moved() -> None:
    clock: Clock = (fake := FakeClock(10.0))
    assert (clock.now(), clock.now()) == (10.0, 10.0)
    fake.advance(2.5)
    fake.advance(0)
    assert clock.now() == 12.5


@pytest.mark.parametrize("seconds", [-0.1, math.nan, math.inf])
def test_a_fake_clock_never_goes_back(seconds: float) -> None:
    clock = FakeClock()
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(seconds)
    assert clock.now() == 0.0
