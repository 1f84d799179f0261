"""The simulation is run without the log of the library."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """The library would log every fault."""
    log = logging.getLogger("pgelect")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    yield
    log.setLevel(level)
