"""The model of a client finds lost jobs, partial batches, and jobs that come back."""

from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest

from holdfast.core.model import JobFilter, NewJob, Receipt, State
from holdfast.core.verdict import Delete, Edit, Redrive
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import OutcomeUnknown
from torture.client_model import ClientModel

STEPS = 300


@pytest.fixture
async def engine() -> AsyncIterator[MemoryEngine]:
    engine = MemoryEngine()
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def account(engine: MemoryEngine) -> ClientModel:
    account = ClientModel("work", Random(0))
    await account.begin(engine)
    await steps(account, engine)
    return account


async def test_a_sound_engine_agrees(engine: MemoryEngine, account: ClientModel) -> None:
    await account.check(engine, may_have_happened=False)
    assert not account.faults
    states = {seen.state for seen in account.known.values() if seen is not None}
    assert states == {State.WAITING, State.LEASED, State.DONE, State.DEAD}


@pytest.mark.parametrize("state", [State.WAITING, State.DONE, State.DEAD])
async def test_a_lost_job_is_found(
    engine: MemoryEngine, account: ClientModel, state: State
) -> None:
    assert await engine.amend(JobFilter(states=(state,)), Delete(), limit=1) == 1
    await account.check(engine, may_have_happened=True)
    assert len(account.faults) == 1


async def test_a_job_that_comes_back_is_found(engine: MemoryEngine, account: ClientModel) -> None:
    assert await engine.amend(JobFilter(states=(State.DONE,)), Redrive(), limit=1) == 1
    await account.check(engine, may_have_happened=True)
    assert len(account.faults) == 1


async def test_another_payload_is_found(engine: MemoryEngine, account: ClientModel) -> None:
    changed = Edit(payload=b"another")
    assert await engine.amend(JobFilter(states=(State.WAITING,)), changed, limit=1) == 1
    await account.check(engine, may_have_happened=True)
    # The outputs of earlier runs are deleted with the payload that they belong to.
    assert any(fault.endswith("another payload") for fault in account.faults)


class HalfDone(MemoryEngine):
    """Does only `part` of a batch, and gives no answer."""

    part = 0.0

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        if len(jobs) == 1:
            return await super().enqueue(jobs)
        if self.part:
            await super().enqueue(jobs[: int(len(jobs) * self.part)])
        raise OutcomeUnknown("no answer")


@pytest.mark.parametrize(
    ("part", "unknown", "fine"),
    [
        (0.0, True, True),
        (0.5, True, False),
        (1.0, True, True),
        (0.0, False, True),
        (1.0, False, False),
    ],
)
async def test_an_unanswered_batch_is_stored_completely_or_not_at_all(
    part: float, unknown: bool, fine: bool
) -> None:
    """And when the error says that nothing was changed, then nothing is."""
    engine = HalfDone()
    engine.part = part
    await engine.open()
    account = ClientModel("work", Random(0))
    await account.begin(engine)
    with pytest.raises(OutcomeUnknown):
        await steps(account, engine)
    await account.check(engine, may_have_happened=unknown)
    assert (not account.faults) == fine


async def steps(account: ClientModel, engine: Engine) -> None:
    for _ in range(STEPS):
        await account.step(engine)
