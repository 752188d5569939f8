"""The names of queues that are counted are those of queues that there are."""

import pytest

from holdfast.core.model import LeaseRequest, NewJob, Queue
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.observed import Observed
from holdfast.telemetry.meter import Meter
from holdfast.telemetry.totals import OTHER
from holdfast.upkeep import wall_ms


@pytest.fixture
def meter() -> Meter:
    return Meter(wall_ms)


@pytest.fixture
def observed(engine: Engine, meter: Meter) -> Engine:
    return Observed(engine, meter.hear)


async def test_who_repeats_what_is_done_already_makes_no_names(
    observed: Engine, meter: Meter
) -> None:
    """A verdict that is settled already is not looked at again, and says what it likes."""
    await observed.enqueue([NewJob(id="a", task="t")])
    [lease] = await observed.lease(LeaseRequest(queues=("default",)))
    await observed.settle([Settlement(lease=lease, verdict=Complete())])
    for number in range(5):
        follow_up = NewJob(id=f"f{number}", task="t", queue=f"made-up-{number}")
        again = Settlement(lease=lease, verdict=Complete(then=(follow_up,)))
        assert await observed.settle([again]) == [Outcome.SETTLED]
        await observed.enqueue([NewJob(id="a", task="t", queue=f"made-up-{number}")])
    assert set(meter.totals.queues) == {"default", OTHER}


async def test_a_queue_that_was_just_made_has_its_name(observed: Engine, meter: Meter) -> None:
    await observed.enqueue([NewJob(id="a", task="t")])
    await observed.declare(Queue(name="mail"))
    [lease] = await observed.lease(LeaseRequest(queues=("default",)))
    then = (NewJob(id="b", task="t", queue="mail"),)
    await observed.settle([Settlement(lease=lease, verdict=Complete(then=then))])
    assert meter.totals.queues["mail"].counts == {"enqueued": 1}
