"""The contract is chosen by the traits of an engine, and by nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.conformance.contract import (
    DurableContract,
    EngineContract,
    Harness,
    JumpContract,
    SharedContract,
)
from holdfast.conformance.contract.cases import TRAITS, deselected, missing, needs, needs_of
from holdfast.engines.base import Traits
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.support import FULL

ALL = (EngineContract, DurableContract, SharedContract, JumpContract)
UNTESTED = {"atomic_max", "batch_max", "lease_ms_max", "retry_ms_max"}
"""Bounds that no test of the contract goes to."""


def all_tests(contract: type) -> dict[str, Any]:
    return {
        name: test
        for base in reversed(contract.__mro__)
        for name, test in vars(base).items()
        if name.startswith("test_")
    }


def without(name: str) -> Traits:
    if name == "atomic":
        return replace(FULL, atomic_max=0)
    return replace(FULL, **{name: getattr(FULL, name) - 1})


WHOLE = type("Whole", ALL, {})


def test_an_engine_with_every_trait_runs_every_test() -> None:
    assert deselected(WHOLE, FULL) == {}
    assert all(callable(test) for test in all_tests(WHOLE).values())
    assert len(all_tests(WHOLE)) == sum(len(all_tests(contract)) for contract in ALL)


@pytest.mark.parametrize("name", sorted(TRAITS))
def test_without_a_trait_exactly_the_tests_that_need_it_are_left_out(name: str) -> None:
    off = without(name)
    lacking = {name} | ({"atomic_max"} if name == "atomic" else set())
    assert missing(off) == lacking
    chosen = type("Chosen", ALL, {"traits": off})
    left_out = {test for test in all_tests(WHOLE) if getattr(chosen, test) is None}
    assert left_out == {
        test for test, found in all_tests(WHOLE).items() if needs_of(found) & lacking
    }
    assert bool(left_out) == (name not in UNTESTED)


def test_a_mark_on_a_class_is_on_each_of_its_tests() -> None:
    @needs("groups")
    class Theme:
        def test_one(self) -> None: ...

        @needs("keys")
        def test_two(self) -> None: ...

        def helper(self) -> None: ...

    assert needs_of(Theme.test_one) == {"groups"}
    assert needs_of(Theme.test_two) == {"groups", "keys"}
    assert needs_of(Theme.helper) == set()


def test_only_traits_can_be_needed() -> None:
    with pytest.raises(AssertionError, match="colour"):
        needs("colour")


BROKER = replace(
    FULL,
    name="broker",
    durable=False,
    shared=False,
    atomic_max=0,
    delay_ms_max=900_000,
    lease_ms_max=43_200_000,
    retry_ms_max=43_200_000,
    payload_max=256 * 1024,
    **{name: False for name in TRAITS - {"atomic"} if getattr(FULL, name) is True},
)


class Broker(MemoryEngine):
    """A memory engine with the traits of a plain broker."""

    @property
    def traits(self) -> Traits:
        return BROKER


class TestBroker(EngineContract, JumpContract):
    """The chosen tests need no trait that is missing."""

    traits = BROKER

    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        async with Harness(lambda clock: Broker(clock=clock)) as harness:
            yield harness
