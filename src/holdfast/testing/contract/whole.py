"""The contract as one class: the fixture `twin`, and the tests of every theme."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.testing.contract.aging import Aging
from holdfast.testing.contract.amending import Amending
from holdfast.testing.contract.batching import GroupBatches
from holdfast.testing.contract.changing import Changing
from holdfast.testing.contract.concurrency import Concurrency
from holdfast.testing.contract.counting import Counting, Reading
from holdfast.testing.contract.crowding import Crowding
from holdfast.testing.contract.declaring import Declaring
from holdfast.testing.contract.depending import Depending
from holdfast.testing.contract.durable import DurableContract
from holdfast.testing.contract.enqueueing import Enqueueing
from holdfast.testing.contract.expiring import Expiring
from holdfast.testing.contract.fencing import Fencing
from holdfast.testing.contract.follow_ups import FollowUps
from holdfast.testing.contract.grouping import Grouping
from holdfast.testing.contract.hostility import Hostility
from holdfast.testing.contract.inspecting import Inspecting
from holdfast.testing.contract.jumping import JumpContract
from holdfast.testing.contract.keys import Keys
from holdfast.testing.contract.leasing import Leasing
from holdfast.testing.contract.limiting import Limiting
from holdfast.testing.contract.outliving import Outliving
from holdfast.testing.contract.rating import Rating
from holdfast.testing.contract.reaping import Reaping
from holdfast.testing.contract.records import Records
from holdfast.testing.contract.refusing import FollowingOn, Refusing
from holdfast.testing.contract.renewing import Renewing
from holdfast.testing.contract.resuming import Resuming
from holdfast.testing.contract.settling import Settling
from holdfast.testing.contract.sharing import SharedContract
from holdfast.testing.contract.sharing_out import Noticing, Sharing
from holdfast.testing.contract.waiting import Waiting
from holdfast.testing.contract.waking import Waking
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin


class Twinned:
    """Each test ends with a comparison of the whole store."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    async def twin(self, harness: Harness) -> AsyncIterator[Twin]:
        twin = await harness.twin()
        yield twin
        await twin.agree()


class WithoutFlow(
    Twinned,
    Declaring,
    Enqueueing,
    Keys,
    Leasing,
    Renewing,
    Settling,
    Fencing,
    FollowUps,
    Resuming,
    Reaping,
    Expiring,
    Amending,
    Inspecting,
    Records,
    Hostility,
    Waiting,
    Concurrency,
    Grouping,
    GroupBatches,
    Depending,
    Outliving,
    Refusing,
    FollowingOn,
):
    """All themes but limits, rates and fairness, which need one count of all jobs."""


class EngineContract(
    WithoutFlow,
    Limiting,
    Counting,
    Reading,
    Changing,
    Rating,
    Sharing,
    Noticing,
    Aging,
    Waking,
    Crowding,
):
    """Its tests need a fixture `harness`."""

    async def test_the_contracts_fit_the_traits(self, harness: Harness) -> None:
        """What an engine says it can do is tested, and what is tested it says."""
        traits = harness.engine.traits
        assert traits.groups
        assert traits.dependencies
        assert traits.rates
        assert isinstance(self, DurableContract) == traits.durable
        assert isinstance(self, SharedContract) == traits.shared
        assert isinstance(self, JumpContract) == harness.can_jump
