"""The real engines that mutants wrap."""

from collections.abc import Callable, Iterator

import pytest

from holdfast.conformance.simulate import MakeEngine
from torture.simulate import factory


@pytest.fixture(params=["sqlite", "postgres"])
def fresh(request: pytest.FixtureRequest) -> Iterator[Callable[[], MakeEngine]]:
    """Each call gives a maker of engines on one new store."""
    name = request.param
    dsn = request.getfixturevalue("pg_dsn") if name == "postgres" else None
    with factory(name, dsn) as fresh:
        yield fresh


@pytest.fixture
def fresh_sqlite() -> Iterator[Callable[[], MakeEngine]]:
    with factory("sqlite") as fresh:
        yield fresh
