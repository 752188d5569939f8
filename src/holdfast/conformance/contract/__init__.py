"""The contract of an engine. Run it on yours with one fixture, in a pytest with `anyio`:

class TestMine(EngineContract, DurableContract, SharedContract, JumpContract):
    traits = MyEngine.TRAITS  # leaves out the tests of traits that the engine lacks
    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        async with Harness(lambda clock: MyEngine(..., clock=clock)) as harness: yield harness
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest

from holdfast.conformance.contract.amend import AmendContract
from holdfast.conformance.contract.cases import SelectedByTraits, missing
from holdfast.conformance.contract.concurrency import ConcurrencyContract, FlowConcurrencyContract
from holdfast.conformance.contract.dead_letters import DeadLetterContract
from holdfast.conformance.contract.declare import DeclareContract, RecordContract
from holdfast.conformance.contract.dependencies import DependencyContract, ParentChangeContract
from holdfast.conformance.contract.enqueue import EnqueueContract, HostileInputContract
from holdfast.conformance.contract.fairness import NoisyTenantContract, TurnContract
from holdfast.conformance.contract.follow_ups import (
    FollowUpChildContract,
    FollowUpContract,
    RefusedChildContract,
)
from holdfast.conformance.contract.groups import GroupBatchContract, GroupContract
from holdfast.conformance.contract.keys import KeyContract
from holdfast.conformance.contract.lease import AgingContract, LeaseContract
from holdfast.conformance.contract.lease_wait import LeaseWaitContract, WakeContract
from holdfast.conformance.contract.limit_settings import (
    FlowViewContract,
    LimitKeyContract,
    RateContract,
)
from holdfast.conformance.contract.limits import LimitChangeContract, LimitContract
from holdfast.conformance.contract.renew import RenewContract, ResumeContract
from holdfast.conformance.contract.search import SearchContract
from holdfast.conformance.contract.settle import FenceContract, SettleContract
from holdfast.conformance.contract.store import DurableContract, JumpContract, SharedContract
from holdfast.conformance.contract.upkeep import (
    ExpiryContract,
    QueueExpiryContract,
    ReapContract,
)
from holdfast.conformance.harness import Harness, Twin

__all__ = ["DurableContract", "EngineContract", "Harness", "JumpContract", "SharedContract"]


class TwinContract(SelectedByTraits):
    """Compares the whole store with the reference after each test."""

    pytestmark: Final = pytest.mark.anyio

    @pytest.fixture
    async def twin(self, harness: Harness) -> AsyncIterator[Twin]:
        twin = await harness.twin()
        yield twin
        await twin.agree()


class EngineContract(
    TwinContract,
    DeclareContract,
    EnqueueContract,
    KeyContract,
    LeaseContract,
    AgingContract,
    RenewContract,
    ResumeContract,
    SettleContract,
    FenceContract,
    DeadLetterContract,
    FollowUpContract,
    RefusedChildContract,
    FollowUpChildContract,
    ReapContract,
    ExpiryContract,
    QueueExpiryContract,
    AmendContract,
    SearchContract,
    RecordContract,
    HostileInputContract,
    LeaseWaitContract,
    WakeContract,
    ConcurrencyContract,
    FlowConcurrencyContract,
    GroupContract,
    GroupBatchContract,
    DependencyContract,
    ParentChangeContract,
    LimitContract,
    LimitChangeContract,
    LimitKeyContract,
    FlowViewContract,
    RateContract,
    TurnContract,
    NoisyTenantContract,
):
    """Every theme. The tests need a fixture `harness`; those that need a trait which the class's
    `traits` lack are left out."""

    async def test_the_contracts_fit_the_traits(self, harness: Harness) -> None:
        """Every trait of the engine is tested, and nothing else."""
        traits = harness.engine.traits
        assert missing(traits) == missing(self.traits), "set the class's traits to the engine's"
        assert isinstance(self, DurableContract) == traits.durable
        assert isinstance(self, SharedContract) == traits.shared
        assert isinstance(self, JumpContract) == harness.can_jump
