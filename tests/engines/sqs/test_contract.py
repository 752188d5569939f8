"""The contract over SQS: on our own endpoint, and on two emulators.

Their clocks are real: a test that needs a manual one needs a trait that this engine lacks.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.conformance.contract import (
    DurableContract,
    EngineContract,
    Harness,
    SharedContract,
)
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.engines.sqs.engine import SqsEngine
from holdfast.testing.clock import ManualClock
from holdfast.testing.sqs import REGION
from tests.engines.sqs.servers import create_queue

TRAITS = SqsEngine(REGION, control=MemoryEngine()).traits
WITHOUT_CONTROL = SqsEngine(REGION).traits
"""Records are stored by the control engine: once is enough."""


@asynccontextmanager
async def sqs_harness(endpoint: str, control: Path | None = None) -> AsyncIterator[Harness]:
    """Each with queues of its own. The engine does not create queues by itself, so that an unknown
    one is refused as by other engines."""
    prefix = f"t{uuid4().hex[:8]}-"

    def make(clock: ManualClock) -> Engine:
        records = None
        if control is not None:
            records = SQLiteEngine(control, durability="relaxed", clock=clock)
        return SqsEngine(REGION, prefix, endpoint=endpoint, control=records)

    create_queue(endpoint, f"{prefix}default")
    async with Harness(make, can_jump=False) as harness:
        yield harness


@pytest.mark.usefixtures("aws")
class TestOwnEndpoint(EngineContract, DurableContract, SharedContract):
    traits = TRAITS

    @pytest.fixture
    async def harness(self, endpoint: str, memory_path: Path) -> AsyncIterator[Harness]:
        async with sqs_harness(endpoint, memory_path / "control.db") as harness:
            yield harness


@pytest.mark.usefixtures("aws")
class TestMoto(EngineContract, DurableContract, SharedContract):
    traits = WITHOUT_CONTROL

    @pytest.fixture
    async def harness(self, moto: str) -> AsyncIterator[Harness]:
        async with sqs_harness(moto) as harness:
            yield harness


@pytest.mark.usefixtures("aws")
class TestMinistack(EngineContract, DurableContract, SharedContract):
    traits = WITHOUT_CONTROL

    @pytest.fixture
    async def harness(self, ministack: str) -> AsyncIterator[Harness]:
        async with sqs_harness(ministack) as harness:
            yield harness
