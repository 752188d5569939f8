"""Only existing queues get labels in the counts."""

import pytest

from holdfast.core.model import LeaseRequest, NewJob, Queue
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.observed import Observed
from holdfast.process import wall_ms
from holdfast.telemetry.meter import OTHER, Meter


@pytest.fixture
def meter() -> Meter:
    return Meter(wall_ms)


@pytest.fixture
def observed(engine: Engine, meter: Meter) -> Engine:
    return Observed(engine, meter.record)


async def test_a_repeated_enqueue_takes_no_label(observed: Engine, meter: Meter) -> None:
    """A repeated settle is not checked again, and may name any queue."""
    await observed.enqueue([NewJob(id="a", task="t")])
    [lease] = await observed.lease(LeaseRequest(queues=("default",)))
    await observed.settle([Settlement(lease=lease, verdict=Complete())])
    for number in range(5):
        follow_up = NewJob(id=f"f{number}", task="t", queue=f"made-up-{number}")
        again = Settlement(lease=lease, verdict=Complete(then=(follow_up,)))
        assert await observed.settle([again]) == [Outcome.SETTLED]
        await observed.enqueue([NewJob(id="a", task="t", queue=f"made-up-{number}")])
    assert set(meter.totals.queues) == {"default", OTHER}


async def test_a_new_queue_has_its_label(observed: Engine, meter: Meter) -> None:
    await observed.enqueue([NewJob(id="a", task="t")])
    await observed.declare(Queue(name="mail"))
    [lease] = await observed.lease(LeaseRequest(queues=("default",)))
    then = (NewJob(id="b", task="t", queue="mail"),)
    await observed.settle([Settlement(lease=lease, verdict=Complete(then=then))])
    assert meter.totals.queues["mail"].counts == {"enqueued": 1}
