"""Pairs of servers, a primary and its standby, that the tests of one module share."""

from collections.abc import Iterator

import pytest

from tests.support.replication import VERSIONS, Pair, Pairs, shared_pairs


@pytest.fixture(scope="module")
def pairs() -> Iterator[Pairs]:
    with shared_pairs() as pairs:
        yield pairs


@pytest.fixture
def pair(pairs: Pairs) -> Iterator[Pair]:
    """Put in order before each test; its configuration is to be left as it is."""
    with pairs.lend() as pair:
        yield pair


@pytest.fixture(params=VERSIONS)
def any_pair(request: pytest.FixtureRequest, pairs: Pairs) -> Iterator[Pair]:
    """On each major version in turn."""
    with pairs.lend(request.param) as pair:
        yield pair
