"""Many followers of one lock: a few wait in the server's queue, the others stand aside and look now and then.

To wait costs about one statement a second for each who does, so with all of them in the queue the load would grow with
their number. What is here keeps it below twenty statements a second, however many there are:

- ``PLACES`` of them wait. Who is refused the lock while so many do stands aside; of those who wait, the one with more
  than that many before it does, too.
- Those aside look ``LOOKS_PER_S`` times a second, all of them together: each knows how many there are, and draws when
  to look again. Who sees a free place takes it, so a queue that has lost somebody is full again within a moment, and
  when all who waited have died together with the leader, the next one to look leads.
"""

from __future__ import annotations

import random

PLACES = 4
"""So many followers wait in the server's queue: all but one of them, and the leader, may die at once."""
LOOKS_PER_S = 8.0
"""So often all of those who stand aside look, together, once there are eight or more."""
LOOK_EVERY_S = 1.0
"""So often each one looks where there are fewer: to wait in the queue would cost as much."""
SPREAD = 0.5
"""The time of each look is drawn, up to so much of the mean earlier or later, so that looks do not come in bursts."""


def aside_s(others: int) -> float:
    """Draw how long to stand aside until the next look, in seconds, beside so many others who do."""
    mean_s = max(LOOK_EVERY_S, (others + 1) / LOOKS_PER_S)
    return mean_s * random.uniform(1 - SPREAD, 1 + SPREAD)  # noqa: S311 -- jitter, not a secret
