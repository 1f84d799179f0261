"""The event loops that chosen tests run under: asyncio's own, and uvloop's.

@pytest.mark.parametrize("loop_factory", loop_factories())
def test_it(loop_factory):
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())
"""

import asyncio
import importlib.util

import pytest

from tests.support.environment import in_ci


def loop_factories() -> list[object]:
    """Parameters for `asyncio.Runner(loop_factory=...)`; without uvloop its case is skipped, or fails in CI."""
    plain = pytest.param(asyncio.new_event_loop, id="asyncio")
    if importlib.util.find_spec("uvloop") is None:
        if in_ci():
            raise ModuleNotFoundError("uvloop is not installed, and in CI it has to be", name="uvloop")
        return [plain, pytest.param(None, id="uvloop", marks=pytest.mark.skip(reason="uvloop is not installed"))]
    import uvloop  # noqa: PLC0415 - optional

    return [plain, pytest.param(uvloop.new_event_loop, id="uvloop")]
