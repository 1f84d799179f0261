"""The network of one simulated process: its links to the server, how long messages take, and how links break."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgelect.testing._fake_wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.world import World

USUAL_S = 0.001
MESSAGE_S = 0.05
"""The longest that a message travels, unless the network is slow."""
SLOW_S = 0.3


class Network:
    """All links of one process. Links that are made while a way is blocked are blocked, too."""

    def __init__(self, world: World, hand_over: Callable[[Callable[[], None]], None]) -> None:
        self._world = world
        self._hand_over = hand_over
        self.wires: list[Wire] = []
        self.up_blocked = self.down_blocked = False
        self.slow = False
        self._calm_at = 0.0  # what was sent while it was slow has arrived

    def new_wire(self) -> Wire:
        """Make a link."""
        wire = Wire(self._world, self.delay_s, self._hand_over)
        wire.up.blocked, wire.down.blocked = self.up_blocked, self.down_blocked
        self.wires.append(wire)
        return wire

    def delay_s(self) -> float:
        """How long one message travels: mostly about a millisecond, now and then much longer."""
        chance = self._world.chance
        if self.slow:
            return chance.random() * SLOW_S
        if chance.random() < 0.97:
            return min(chance.expovariate(1 / USUAL_S), MESSAGE_S)
        return chance.random() * MESSAGE_S

    @property
    def is_well(self) -> bool:
        """Whether every message arrives, and none takes longer than MESSAGE_S."""
        return not (self.up_blocked or self.down_blocked or self.slow) and self._world.now() >= self._calm_at

    def be_slow(self) -> None:
        """Let messages take their time."""
        self.slow = True

    def be_fast(self) -> None:
        """Undo it."""
        self.slow = False
        self._calm_at = self._world.now() + SLOW_S

    def block(self, *, up: bool, down: bool) -> None:
        """Let nothing through in these directions; nobody is told."""
        self.up_blocked, self.down_blocked = self.up_blocked or up, self.down_blocked or down
        for wire in self.wires:
            wire.up.blocked, wire.down.blocked = self.up_blocked, self.down_blocked

    def unblock(self) -> None:
        """Let everything through again."""
        self.up_blocked = self.down_blocked = False
        for wire in self.wires:
            wire.unblock()

    def hang_up(self) -> None:
        """Close all links as the system does for a process that has died."""
        for wire in self.wires:
            if wire.hang_up is not None:
                wire.ask(wire.hang_up)

    def power_off(self) -> None:
        """Be gone without a word."""
        for wire in self.wires:
            wire.up.lose()
            wire.down.lose()
