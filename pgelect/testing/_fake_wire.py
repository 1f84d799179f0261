"""The links of the fake server: what one side sends reaches the other in order, later, or never.

Rules, as with TCP:

- A connection has two ways. On each, messages arrive in the order in which they were sent, each after a delay.
- A blocked way keeps what is sent until it opens again (TCP sends again); nobody is told. A lost way drops it for good.
- A break is either heard of at one end, by its own system and at once, or it travels as a reset, like any message.
- What arrives at a client is handed over to the program it belongs to, which may be asleep.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Do not make the call."""


class Timers(Protocol):
    """The time that a fake server lives in."""

    def now(self) -> float:
        """Return the time in seconds; it never goes back."""

    def call_later(self, delay_s: float, callback: Callable[[], None], /) -> Timer:
        """Call back after so many seconds. Calls due at one instant are made in the order of their making."""


class LoopTimers:
    """The time of the running event loop."""

    __slots__ = ()

    def now(self) -> float:
        """Return the event loop's time."""
        return asyncio.get_running_loop().time()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Have the event loop call back."""
        loop = asyncio.get_running_loop()
        return loop.call_later(delay_s, callback) if delay_s > 0 else loop.call_soon(callback)


class Way:
    """One direction of a link."""

    def __init__(self, timers: Timers, delay_s: Callable[[], float]) -> None:
        self._timers = timers
        self._delay_s = delay_s
        self._sent: deque[Callable[[], None]] = deque()
        self._due = 0  # of these, how many have travelled
        self._losses = 0  # so far
        self._last_arrival = float("-inf")
        self.blocked = False
        self.lost = False

    def send(self, deliver: Callable[[], None], *, at_once: bool = False) -> None:
        """Send a message. ``at_once``: on an idle link without delay it arrives before this returns."""
        if self.lost:
            return
        delay_s = self._delay_s()
        if at_once and delay_s <= 0 and not self._sent and not self.blocked:
            deliver()
            return
        now = self._timers.now()
        self._last_arrival = max(now + delay_s, self._last_arrival)
        self._sent.append(deliver)
        self._timers.call_later(self._last_arrival - now, partial(self._arrive, self._losses))

    def block(self) -> None:
        """Let nothing through for now."""
        self.blocked = True

    def unblock(self) -> None:
        """Let through what was kept, and what comes."""
        self.blocked = False
        self._flush()

    def lose(self) -> None:
        """Drop what is under way, and all that comes."""
        self.lost = True
        self._losses += 1
        self._sent.clear()
        self._due = 0

    def reset(self, deliver: Callable[[], None]) -> None:
        """Answer somebody who goes on as if nothing had been lost. It takes its time, and waits for a blocked way."""
        self.lost = False
        self.send(deliver)

    def _arrive(self, losses: int) -> None:
        if losses == self._losses:  # else it was dropped on the way
            self._due += 1
            self._flush()

    def _flush(self) -> None:
        while self._due and self._sent and not self.blocked:
            self._due -= 1
            self._sent.popleft()()


def _hand_over_now(deliver: Callable[[], None]) -> None:
    deliver()


class Wire:
    """One connection: ``up`` to the server, ``down`` to the client.

    Args:
        timers: the time that messages travel in.
        delay_s: asked for each message: how long it travels.
        hand_over: how what has arrived is given to the client's program; by default at once.
    """

    def __init__(
        self,
        timers: Timers,
        delay_s: Callable[[], float],
        hand_over: Callable[[Callable[[], None]], None] = _hand_over_now,
    ) -> None:
        self._hand_over = hand_over
        self.hang_up: Callable[[], None] | None = None  # what reaches the server when the client's end is closed
        self.up = Way(timers, delay_s)
        self.down = Way(timers, delay_s)

    def ask(self, at_server: Callable[[], None], *, at_once: bool = False) -> None:
        """Send something to the server."""
        self.up.send(at_server, at_once=at_once)

    def tell(self, at_client: Callable[[], None], *, at_once: bool = False) -> None:
        """Send something to the client."""
        self.down.send(lambda: self._hand_over(at_client), at_once=at_once)

    def break_client(self, at_client: Callable[[], None]) -> None:
        """Have the client's own system tell it, at once, that the connection is gone; the server hears nothing."""
        self.up.lose()
        self.down.lose()
        self._hand_over(at_client)

    def reset_client(self, at_client: Callable[[], None]) -> None:
        """Answer a client whose session is gone; it may not have heard of that."""
        self.down.reset(lambda: self._hand_over(at_client))

    def block(self) -> None:
        """Let nothing through, either way."""
        self.up.block()
        self.down.block()

    def unblock(self) -> None:
        """Let everything through again."""
        self.up.unblock()
        self.down.unblock()
