"""Two namespaces in one store: the same names in both do not affect each other."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.conformance.contract.cases import a_job, from_default, lease_one, settle
from holdfast.conformance.harness import Harness, Twin
from holdfast.core.model import JobFilter, Queue, Record, Renewal, State, Status
from holdfast.core.verdict import Cancel, Complete, Delete, Outcome, Retry
from holdfast.engines.base import Saved
from tests.engines import harnesses

ENGINES = ("sqlite", "postgres")


@pytest.fixture(params=ENGINES)
async def pair(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Harness, Harness]]:
    if request.param == "sqlite":
        one, two = (harnesses.sqlite(tmp_path / "w.db", namespace=name) for name in ("n1", "n2"))
    else:
        dsn = request.getfixturevalue("shared_pg_dsn")
        one, two = harnesses.postgres(dsn), harnesses.postgres(dsn)
    async with one, two:
        yield one, two


@pytest.fixture
async def twins(pair: tuple[Harness, Harness]) -> AsyncIterator[list[Twin]]:
    twins = [await harness.twin() for harness in pair]
    yield twins
    for twin in twins:
        await twin.agree()


async def test_ids_keys_queues_and_records_belong_to_a_namespace(twins: list[Twin]) -> None:
    for number, twin in enumerate(twins):
        await twin.declare(Queue(name="q", lease_ms=100 + number))
        (receipt,) = await twin.enqueue([a_job(queue="q", key="k", payload=b"%d" % number)])
        assert receipt.status is Status.NEW
        record = Record(kind="setting", key="s", value=b"%d" % number)
        assert await twin.save([record]) == [Saved.SAVED]
    for number, twin in enumerate(twins):
        assert (await twin.require("a")).payload == b"%d" % number
        assert (await twin.load("setting"))[0].value == b"%d" % number
        assert len(await twin.find(JobFilter())) == 1
        (lease,) = await twin.lease(from_default(5, queues=("q",)))
        assert lease.lease_ms == 100 + number


async def test_a_lease_reaches_no_job_of_another_namespace(twins: list[Twin]) -> None:
    one, two = twins
    for twin in twins:
        await twin.enqueue([a_job()])
    # One more lease there: should each namespace count by itself, the two tokens differ.
    await settle(two, await lease_one(two), Retry())
    lease, other = await lease_one(one), await lease_one(two)
    assert await two.engine.renew([Renewal(lease=lease)]) == [None]
    assert await settle(two.engine, lease, Complete()) is Outcome.LOST
    assert await settle(one, lease, Complete(b"1")) is Outcome.SETTLED
    assert await settle(two, other, Complete(b"2")) is Outcome.SETTLED


async def test_amendments_and_drops_stay_in_their_namespace(twins: list[Twin]) -> None:
    one, two = twins
    for twin in twins:
        await twin.declare(Queue(name="q"))
        await twin.enqueue([a_job(queue="q"), a_job("b")])
    assert await one.amend(JobFilter(), Cancel()) == 2
    assert await two.amend(JobFilter(states=(State.CANCELLED,)), Delete()) == 0
    await one.drop("q")
    assert await two.get("a") is not None
    assert [view.queue.name for view in await two.queues()] == ["default", "q"]


async def test_lists_for_upkeep_stay_in_their_namespace(
    pair: tuple[Harness, Harness], twins: list[Twin]
) -> None:
    one, two = twins
    await one.declare(Queue(name="default", retention_ms=0))
    await one.enqueue([a_job("old", expires_ms=1), a_job("done"), a_job("late")])
    done = await lease_one(one, queues=(), ids=("done",))
    await settle(one, done, Complete())
    await lease_one(one, queues=(), ids=("late",))
    for harness in pair:
        harness.clock.advance(60_000)
    assert (await two.overdue()).next_ms is None
    assert (await two.expired()).next_ms is None
    assert await two.finished() == []
    assert len((await one.overdue()).leases) == 1
    assert len((await one.expired()).jobs) == 1
    assert len(await one.finished()) == 1
