"""Which calls tell the broker what, with a broker in this process: a ledger on a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.conformance.contract.cases import a_job, a_queue
from holdfast.core.limits import Limit
from holdfast.core.model import JobFilter, Lease, LeaseRequest, NewJob, Queue, Receipt, State
from holdfast.core.verdict import (
    Bury,
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Forward,
    Move,
    Outcome,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.base import Engine
from holdfast.engines.broker import JobMessage
from holdfast.engines.brokered import BrokeredEngine
from holdfast.engines.extras import Brokered, Transactional, extra
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.partitioned import PartitionedEngine
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.errors import ConfigError, EngineUnavailable, OutcomeUnknown
from holdfast.testing.clock import ManualClock
from tests.engines.brokered.fake_broker import FakeBroker, FakeHub
from tests.engines.sqlite.conftest import until_awaited

ALL: frozenset[str] = frozenset()
OWN = "worker.w1"
MINUTE = 60_000


class Side:
    """One process: an engine and its broker."""

    def __init__(self, engine: Engine, broker: FakeBroker) -> None:
        self.engine = engine
        self.broker = broker

    async def told(self) -> tuple[list[frozenset[str]], list[JobMessage]]:
        """The calls of the broker since the last question, once all reads are done."""
        while self.engine._deliveries._reading:  # type: ignore[attr-defined]
            await asyncio.wait(self.engine._deliveries._reading)  # type: ignore[attr-defined]
        notices, self.broker.notices = self.broker.notices, []
        messages, self.broker.messages = self.broker.messages, []
        return notices, messages

    async def lease(self, *queues: str, limit: int = 1) -> list[Lease]:
        leases = await self.engine.lease(LeaseRequest(queues=queues or ("default",), limit=limit))
        await self.told()
        return leases


async def settle(engine: Engine, leases: Sequence[Lease], verdict: Verdict) -> list[Outcome]:
    return await engine.settle([Settlement(lease=one, verdict=verdict) for one in leases])


@pytest.fixture
async def side(memory_path: Path, clock: ManualClock) -> AsyncIterator[Side]:
    async with opened(memory_path, clock, FakeHub()) as one:
        yield one


@asynccontextmanager
async def opened(place: Path, clock: ManualClock, hub: FakeHub) -> AsyncIterator[Side]:
    broker = FakeBroker(hub)
    ledger = SQLiteEngine(place / "work.db", namespace="n", durability="relaxed", clock=clock)
    engine = BrokeredEngine(ledger, broker, namespace="n")
    await engine.open()
    for name in (OWN, "worker.w2", "other"):
        await engine.declare(Queue(name=name))
    one = Side(engine, broker)
    await one.told()
    yield one
    await engine.close()


async def test_open_passes_the_namespace_on(side: Side) -> None:
    assert side.broker.namespace == "n"


async def test_a_new_job_is_told(side: Side) -> None:
    await side.engine.enqueue([a_job("a"), a_job("b", queue="other")])
    assert await side.told() == ([frozenset({"default", "other"})], [])


async def test_duplicates_and_refused_jobs_are_not_told(side: Side) -> None:
    await side.engine.enqueue([a_job("a", key="k")])
    await side.told()
    await side.engine.enqueue([a_job("a"), a_job("b", key="k"), a_job("c", queue="missing")])
    assert await side.told() == ([], [])


async def test_a_duplicate_that_replaces_is_told(side: Side) -> None:
    await side.engine.enqueue([a_job("a", key="k", delay_ms=MINUTE)])
    await side.told()
    await side.engine.enqueue([a_job("b", key="k", key_policy="replace")])
    assert await side.told() == ([frozenset({"default"})], [])


async def test_a_plain_completion_tells_nothing(side: Side) -> None:
    await side.engine.enqueue([a_job("a"), a_job("b")])
    leases = await side.lease(limit=2)
    await settle(side.engine, leases, Complete())
    assert await side.told() == ([], [])


@pytest.mark.parametrize(
    ("verdict", "queues"),
    [
        (Retry(), {"default"}),
        (Release(), {"default"}),
        (Forward("other"), {"default", "other"}),
        (Complete(then=(a_job("next", queue="other"),)), {"other"}),
        (Bury(), set()),
    ],
)
async def test_other_verdicts_tell(side: Side, verdict: Verdict, queues: set[str]) -> None:
    await side.engine.enqueue([a_job("a")])
    leases = await side.lease()
    await settle(side.engine, leases, verdict)
    assert await side.told() == ([frozenset(queues)], [])


async def test_a_lost_settlement_tells_nothing(side: Side) -> None:
    await side.engine.enqueue([a_job("a")])
    leases = await side.lease()
    await settle(side.engine, leases, Complete())
    assert await settle(side.engine, leases, Retry()) == [Outcome.LOST]
    assert await side.told() == ([], [])


async def test_a_completion_that_frees_others_tells_all(side: Side) -> None:
    limit = Limit(name="one", concurrency=1)
    await side.engine.declare(a_queue("limited", limits=(limit,)))
    await side.engine.enqueue([a_job(each, queue="limited") for each in "ab"])
    await side.engine.enqueue([a_job("parent"), a_job("child", queue="other", after=("parent",))])
    leases = await side.lease("limited")
    await settle(side.engine, leases, Complete())
    assert await side.told() == ([ALL], [])
    leases = await side.lease("default")
    await settle(side.engine, leases, Complete())
    assert await side.told() == ([ALL], [])


@pytest.mark.parametrize(
    ("amendment", "queue", "queues"),
    [
        (Cancel(), None, set()),
        (Redrive(), None, set()),
        (Move(queue="other"), None, set()),
        (Retime(delay_ms=5), "default", {"default"}),
        (Expedite(), "default", {"default"}),
        (Edit(priority=5), "default", {"default"}),
        (Edit(priority=5), None, set()),
        (Delete(), None, set()),
    ],
)
async def test_amendments_tell(
    side: Side, amendment: Any, queue: str | None, queues: set[str]
) -> None:
    await side.engine.enqueue([a_job("a")])
    if isinstance(amendment, Redrive):
        await settle(side.engine, await side.lease(), Bury())
    await side.told()
    assert await side.engine.amend(JobFilter(ids=("a",), queue=queue), amendment, limit=5) == 1
    assert await side.told() == ([frozenset(queues)], [])


async def test_amendments_without_effect_tell_nothing(side: Side) -> None:
    await side.engine.enqueue([a_job("a")])
    await settle(side.engine, await side.lease(), Complete())
    await side.told()
    assert await side.engine.amend(JobFilter(ids=("b",)), Cancel(), limit=5) == 0
    finished = JobFilter(states=(State.DONE, State.DEAD))
    assert await side.engine.amend(finished, Delete(), limit=5) == 1
    assert await side.told() == ([], [])


async def test_settings_and_drops_tell_all(side: Side) -> None:
    await side.engine.declare(Queue(name="other", paused=True))
    await side.engine.drop("other")
    assert await side.told() == ([ALL, ALL], [])


async def test_an_addressed_job_gets_a_message_with_its_time(side: Side) -> None:
    await side.engine.enqueue([a_job("a", queue=OWN, expires_ms=MINUTE), a_job("b")])
    notices, messages = await side.told()
    assert notices == [frozenset({OWN, "default"})]
    assert messages == [JobMessage(id="a", queue=OWN, expires_ms=MINUTE)]


async def test_the_expiry_of_its_queue_is_read(side: Side) -> None:
    await side.engine.declare(Queue(name=OWN, expires_ms=MINUTE))
    await side.engine.enqueue([a_job("a", queue=OWN), a_job("b", queue="worker.w2")])
    _, messages = await side.told()
    assert {one.id for one in messages} == {"a", "b"}
    times = {one.id: one.expires_ms for one in messages}
    assert times["b"] is None
    assert times["a"] is not None
    # The rest of a second was spent between reading the clock and using it.
    assert MINUTE - 1_000 < times["a"] <= MINUTE


@pytest.mark.parametrize(
    "verdict", [Forward(OWN), Complete(then=(a_job("a2", queue=OWN, expires_ms=MINUTE),))]
)
async def test_a_settlement_can_address_jobs(side: Side, verdict: Verdict) -> None:
    await side.engine.enqueue([a_job("a")])
    leases = await side.lease()
    await settle(side.engine, leases, verdict)
    _, messages = await side.told()
    assert [(one.id, one.queue) for one in messages] in ([("a", OWN)], [("a2", OWN)])


@pytest.mark.parametrize("ids", [("a",), None])
async def test_moved_jobs_get_a_message(side: Side, ids: tuple[str, ...] | None) -> None:
    await side.engine.enqueue([a_job("a")])
    await side.told()
    move = Move(queue=OWN, expires_ms=MINUTE)
    assert await side.engine.amend(JobFilter(ids=ids, queue="default"), move, limit=5) == 1
    _, messages = await side.told()
    assert [(one.id, one.queue) for one in messages] == [("a", OWN)]
    assert messages[0].expires_ms is not None
    assert MINUTE - 1_000 < messages[0].expires_ms <= MINUTE


@pytest.mark.parametrize("wanted", [JobFilter(ids=("a",)), JobFilter(queue=OWN)])
async def test_redriven_jobs_get_a_message(side: Side, wanted: JobFilter) -> None:
    await side.engine.enqueue([a_job("a", queue=OWN)])
    await settle(side.engine, await side.lease(OWN), Bury())
    await side.told()
    assert await side.engine.amend(wanted, Redrive(), limit=5) == 1
    _, messages = await side.told()
    assert messages == [JobMessage(id="a", queue=OWN)]


async def test_a_failed_read_costs_only_the_message(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any, **__: Any) -> None:
        raise EngineUnavailable("tests")

    await side.engine.enqueue([a_job("a")])
    await side.told()
    monkeypatch.setattr(SQLiteEngine, "find", fails)
    assert await side.engine.amend(JobFilter(ids=("a",)), Move(queue=OWN), limit=5) == 1
    assert await side.told() == ([ALL], [])


async def test_only_queues_of_the_ledger_are_listened_to(side: Side) -> None:
    """A caller may name any queue: the broker would declare a queue for each worker's."""
    made_up = tuple(f"worker.x{number}" for number in range(5))
    await side.engine.lease(LeaseRequest(queues=(OWN, "default", *made_up), wait_ms=1))
    assert side.broker.listening == {OWN, "default"}
    await side.engine.declare(Queue(name=made_up[0]))
    await side.engine.lease(LeaseRequest(queues=made_up, wait_ms=1))
    assert side.broker.listening == {OWN, "default", made_up[0]}


async def test_messages_of_leased_jobs_are_acknowledged(side: Side) -> None:
    side.broker.listen([OWN])
    jobs = [a_job(each, queue=OWN, expires_ms=MINUTE) for each in "abc"]
    await side.engine.enqueue(jobs)
    assert [one.id for one in await side.lease(OWN, limit=2)] == ["a", "b"]
    assert side.broker.acknowledged == ["a", "b"]
    assert side.broker.received([OWN]) == ["c"]


async def test_a_look_with_room_left_acknowledges_everything(side: Side) -> None:
    """The ledger says that nothing else is due, so the other messages are of no use."""
    side.broker.listen([OWN])
    await side.engine.enqueue([a_job("a", queue=OWN, expires_ms=MINUTE)])
    await side.engine.enqueue([a_job("later", queue=OWN, expires_ms=MINUTE, delay_ms=5)])
    side.broker.deliver([JobMessage(id="unknown", queue=OWN)])
    assert [one.id for one in await side.lease(OWN, limit=2)] == ["a"]
    assert side.broker.received([OWN]) == []


async def test_a_look_for_dead_letters_acknowledges_nothing(side: Side) -> None:
    side.broker.listen([OWN])
    await side.engine.enqueue([a_job("a", queue=OWN, expires_ms=MINUTE)])
    assert await side.engine.lease(LeaseRequest(queues=(OWN,), dead=True)) == []
    assert side.broker.received([OWN]) == ["a"]


async def test_the_order_is_the_ledgers(side: Side) -> None:
    """Messages arrive in the order of delivery; the job with the higher priority is leased."""
    side.broker.listen([OWN])
    await side.engine.enqueue([a_job("low", queue=OWN, expires_ms=MINUTE)])
    await side.engine.enqueue([a_job("high", queue=OWN, expires_ms=MINUTE, priority=5)])
    assert side.broker.received([OWN]) == ["low", "high"]
    assert [one.id for one in await side.lease(OWN)] == ["high"]


@pytest.mark.parametrize("queue", ["default", OWN])
async def test_another_process_wakes_a_waiting_lease(
    memory_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    """By the broker only: the ledger's own ways to learn of it are switched off."""
    monkeypatch.setattr("holdfast.engines.sqlite.wait._inotify", lambda _: None)
    monkeypatch.setattr("holdfast.engines.sqlite.wait.POLL_S_UNWATCHED", 1_000)
    monkeypatch.setattr("holdfast.engines.sqlite.engine._POLL_NET_MS", 1_000_000)
    hub = FakeHub()
    async with opened(memory_path, clock, hub) as one, opened(memory_path, clock, hub) as other:
        request = LeaseRequest(queues=(OWN, "default"), wait_ms=600_000)
        waiting = asyncio.create_task(one.engine.lease(request))
        await until_awaited(one.engine._engine)  # type: ignore[attr-defined]
        await other.engine.enqueue([a_job("a", queue=queue, expires_ms=MINUTE)])
        assert [lease.id for lease in await waiting] == ["a"]
        assert one.broker.acknowledged == (["a"] if queue == OWN else [])


async def test_with_the_broker_down_everything_works(side: Side) -> None:
    side.broker.is_down = True
    await side.engine.enqueue([a_job("a", queue=OWN, expires_ms=MINUTE)])
    leases = await side.lease(OWN)
    assert await settle(side.engine, leases, Complete()) == [Outcome.SETTLED]


class Doubtful(MemoryEngine):
    """Every write takes effect, and its answer is lost."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        await super().enqueue(jobs)
        raise OutcomeUnknown("tests")

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        await super().settle(settlements)
        raise OutcomeUnknown("tests")

    async def amend(self, wanted: JobFilter, amendment: Any, *, limit: int) -> int:
        await super().amend(wanted, amendment, limit=limit)
        raise OutcomeUnknown("tests")


async def test_an_unknown_outcome_is_told_as_if_it_were_known() -> None:
    broker = FakeBroker()
    engine = BrokeredEngine(Doubtful(), broker)
    side = Side(engine, broker)
    await engine.open()
    await engine.declare(Queue(name=OWN))
    await side.told()
    with pytest.raises(OutcomeUnknown):
        await engine.enqueue([a_job("a", queue=OWN, expires_ms=5)])
    assert await side.told() == (
        [frozenset({OWN})],
        [JobMessage(id="a", queue=OWN, expires_ms=5)],
    )
    leases = await engine.lease(LeaseRequest(queues=(OWN,)))
    with pytest.raises(OutcomeUnknown):
        await settle(engine, leases, Retry())
    assert await side.told() == ([frozenset({OWN})], [])
    with pytest.raises(OutcomeUnknown):
        await engine.amend(JobFilter(ids=("a",)), Cancel(), limit=1)
    assert await side.told() == ([ALL], [])
    await engine.close()


async def test_close_finishes_what_is_to_be_delivered(
    memory_path: Path, clock: ManualClock
) -> None:
    async with opened(memory_path, clock, FakeHub()) as one:
        await one.engine.enqueue([a_job("a")])
        await one.engine.amend(JobFilter(ids=("a",)), Move(queue=OWN), limit=5)
    assert [message.id for message in one.broker.messages] == ["a"]


def test_extras_are_the_ledgers_and_the_broker(memory_path: Path) -> None:
    broker = FakeBroker()
    ledger = SQLiteEngine(memory_path / "w.db")
    engine = BrokeredEngine(ledger, broker)
    assert extra(engine, Transactional) is ledger
    found = extra(engine, Brokered)
    assert found is not None
    assert found.broker() is broker


def test_a_ledger_must_be_whole() -> None:
    partitioned = PartitionedEngine([("a", MemoryEngine()), ("b", MemoryEngine())])
    with pytest.raises(ConfigError, match="cannot be the ledger of a broker"):
        BrokeredEngine(partitioned, FakeBroker())
