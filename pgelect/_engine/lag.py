"""How late the event loop is: measured where somebody wants to know, for a loop that lags loses leadership."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgelect._engine.clock import Clock
    from pgelect._engine.meter import LockMetrics, Meter

EVERY_S = 1.0
"""How often it is measured."""


async def measure_lag(clock: Clock, meter: Meter) -> None:
    """Measure until cancelled."""
    while True:
        due = clock.now() + EVERY_S
        await asyncio.sleep(EVERY_S)
        meter.tell(partial(_tell, lag_s=max(0.0, clock.now() - due)))


def _tell(to: LockMetrics, *, lag_s: float) -> None:
    to.loop_lag(lag_s)
