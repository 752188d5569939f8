"""The meter counts every engine call once, under the right queue."""

import json
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.core.model import (
    Failure,
    FailureKind,
    JobFilter,
    LeaseRequest,
    NewJob,
    Queue,
    Reason,
    Receipt,
    Renewal,
    Status,
)
from holdfast.core.verdict import (
    Bury,
    BuryWaiting,
    Cancel,
    Complete,
    Forward,
    Outcome,
    Redrive,
    Release,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.observed import Observed
from holdfast.errors import OutcomeUnknown
from holdfast.events import EngineCalled
from holdfast.ops.workers import end_overdue_and_expired
from holdfast.process import JobFormatter, JsonFormatter
from holdfast.telemetry.event_log import FeedEventKind
from holdfast.telemetry.meter import METERED_MAX, OTHER, QUEUES_MAX, Meter, QueueTotals, Totals
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Reaper

SECOND = 1_000


class Counted:
    """An engine whose calls are counted, on a clock that runs ahead of the meter's."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.meter = Meter(lambda: self.clock.wall_ms() - 12_345)
        self.engine: Engine = Observed(MemoryEngine(clock=self.clock), self.meter.record)

    def of(self, queue: str = "default") -> dict[str, int]:
        found = self.meter.totals.queues.get(queue)
        return {} if found is None else found.counts

    async def put(self, count: int, queue: str = "default") -> None:
        jobs = [NewJob(id=f"{queue}-{n}", task="t", queue=queue) for n in range(count)]
        await self.engine.enqueue(jobs)

    async def settle(self, *verdicts: Verdict) -> None:
        leases = await self.engine.lease(
            LeaseRequest(queues=("default", "mail"), limit=len(verdicts))
        )
        await self.engine.settle(
            [
                Settlement(lease=lease, verdict=verdict)
                for lease, verdict in zip(leases, verdicts, strict=True)
            ]
        )


async def counted(clock: ManualClock | None = None) -> Counted:
    found = Counted(clock)
    await found.engine.open()
    await found.engine.declare(Queue(name="mail"))
    return found


async def test_each_verdict_has_its_counter() -> None:
    one = await counted()
    await one.put(7)
    crash = Failure(kind=FailureKind.CRASH)
    await one.settle(
        Complete(),
        Retry(0),
        Retry(0, Failure()),
        Bury(failure=crash),
        Bury(Reason.EXPLICIT),
        Release(),
        Forward("mail"),
    )
    assert one.of() == {
        "enqueued": 7,
        "leased": 7,
        "completed": 1,
        "retried": 2,
        "failed": 2,
        "crashed": 1,
        "dead": 2,
        "released": 1,
        "forwarded": 1,
    }


async def test_queues_in_one_batch_are_counted_separately() -> None:
    one = await counted()
    await one.put(3)
    await one.put(2, "mail")
    await one.settle(*[Complete()] * 5)
    assert one.of() == {"enqueued": 3, "leased": 3, "completed": 3}
    assert one.of("mail") == {"enqueued": 2, "leased": 2, "completed": 2}


async def test_follow_ups_are_enqueued_too() -> None:
    one = await counted()
    await one.put(1)
    await one.settle(Complete(then=(NewJob(id="next", task="t", queue="mail"),)))
    assert one.of("mail") == {"enqueued": 1}


async def test_duplicates_and_refusals_are_not_new_and_take_no_labels() -> None:
    one = await counted()
    jobs = [NewJob(id="a", task="t"), NewJob(id="b", task="t", queue="who-knows")]
    await one.engine.enqueue([*jobs, jobs[0]])
    assert one.of() == {"enqueued": 1, "duplicates": 1}
    assert one.of(OTHER) == {"refused": 1}
    assert "who-knows" not in one.meter.totals.queues


async def test_a_caller_cannot_use_up_labels() -> None:
    """A client that settles over HTTP names the queue; only existing queues count."""
    one = await counted()
    await one.put(2)
    leases = await one.engine.lease(LeaseRequest(queues=("default",), limit=2))
    feigned = [replace(lease, job=replace(lease.job, queue="feigned")) for lease in leases]
    await one.engine.renew([Renewal(lease=lease) for lease in feigned])
    await one.engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in feigned])
    assert sorted(one.meter.totals.queues) == [OTHER, "default"]
    # A job leased elsewhere counts once its queue is known.
    await one.engine.queues(counts=False)
    real = [replace(lease, job=replace(lease.job, queue="mail")) for lease in leases]
    await one.engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in real])
    assert "mail" in one.meter.totals.queues


async def test_a_process_counts_the_busiest_queues_apart() -> None:
    """Also those of workers that came later."""
    one = await counted()
    names = [f"worker.w{number:04}" for number in range(METERED_MAX + 10)]
    for at, name in enumerate(names):
        one.meter.record(enqueued(name, 1 + (at % 2)))
    queues = one.meter.totals.queues
    assert len(queues) <= METERED_MAX
    assert {*names[-10:], OTHER} <= set(queues)
    assert min(each.jobs for each in list(queues.values())[:QUEUES_MAX]) == 2
    assert sum(each.jobs for each in queues.values()) == (METERED_MAX + 10) * 3 // 2
    # An account that was closed while some of its queues had their own counts.
    stored = Totals(queues={names[0]: QueueTotals({"enqueued": 1})})
    one.meter.subtract(stored)
    left = one.meter.totals.queues
    assert sum(each.jobs for each in left.values()) == (METERED_MAX + 10) * 3 // 2 - 1


def enqueued(queue: str, count: int) -> EngineCalled:
    jobs = [NewJob(id=str(number), task="t", queue=queue) for number in range(count)]
    receipts = [Receipt(id=job.id, status=Status.NEW) for job in jobs]
    return EngineCalled(verb="enqueue", duration_ms=0, asked=jobs, answer=receipts)


async def test_lost_leases_are_counted() -> None:
    one = await counted()
    await one.put(2)
    leases = await one.engine.lease(LeaseRequest(queues=("default",), limit=2))
    lost = [replace(lease, token=lease.token + 1) for lease in leases[:1]]
    await one.engine.renew([Renewal(lease=lease) for lease in (*lost, leases[1])])
    await one.engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in lost])
    assert one.of() == {
        "enqueued": 2,
        "leased": 2,
        "renewals": 1,
        "renewals_lost": 1,
        "settles_lost": 1,
    }


async def test_waits_and_runs_go_by_the_engines_clock() -> None:
    """The meter's own clock is far behind, and does not matter."""
    one = await counted()
    await one.put(3)
    one.clock.advance(20 * SECOND)
    leases = await one.engine.lease(LeaseRequest(queues=("default",), limit=3))
    one.clock.advance(400)
    verdicts: list[Verdict] = [Complete(), Retry(0), Release()]
    await one.engine.settle(
        [Settlement(lease=a, verdict=b) for a, b in zip(leases, verdicts, strict=True)]
    )
    queue = one.meter.totals.queues["default"]
    assert (queue.waits.count, queue.waits.total) == (3, 60 * SECOND)
    # A released job did not run.
    assert (queue.runs.count, queue.runs.total) == (2, 800)


async def test_expired_jobs_count_for_their_queue() -> None:
    one = await counted()
    await one.engine.enqueue(
        [NewJob(id=queue, task="t", queue=queue, expires_ms=10) for queue in ("default", "mail")]
    )
    one.clock.advance(11)
    await Reaper(one.engine).once()
    for queue in ("default", "mail"):
        assert one.of(queue) == {"enqueued": 1, "dead": 1, "expired": 1}


async def test_an_overdue_lease_counts_as_a_crash() -> None:
    one = await counted()
    await one.put(1)
    await one.engine.lease(LeaseRequest(queues=("default",)))
    one.clock.advance(31 * SECOND)
    await Reaper(one.engine).once()
    assert one.of() == {"enqueued": 1, "leased": 1, "retried": 1, "failed": 1, "crashed": 1}


async def test_operators_acts_are_counted() -> None:
    one = await counted()
    await one.put(3)
    wanted = JobFilter(queue="default", ids=("default-0",))
    await one.engine.amend(wanted, Cancel(), limit=1)
    await one.engine.amend(JobFilter(queue="default"), BuryWaiting(), limit=10)
    await one.engine.amend(JobFilter(queue="default"), Redrive(), limit=10)
    assert one.of() == {"enqueued": 3, "cancelled": 1, "dead": 2, "redriven": 2}


async def test_known_parts_of_an_unknown_outcome_are_counted() -> None:
    """The caller has these answers and does not repeat the call; the rest counts when it is
    known."""

    class Half(MemoryEngine):
        async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
            receipts = await super().enqueue(jobs)
            raise OutcomeUnknown("half", known={0: receipts[0]})

    meter = Meter(lambda: 0)
    engine = Observed(Half(), meter.record)
    await engine.open()
    with pytest.raises(OutcomeUnknown):
        await engine.enqueue([NewJob(id="a", task="t"), NewJob(id="b", task="t")])
    assert meter.totals.queues["default"].counts == {"enqueued": 1}


async def test_deaths_are_events_and_their_number_is_bounded() -> None:
    one = await counted()
    await one.put(100)
    failure = Failure(type="ValueError", message="x" * 5_000)
    await one.settle(*[Bury(Reason.REJECTED, failure)] * 100)
    events = one.meter.events.take(5)
    assert len(events) == 41
    first, last = events[0], events[-1]
    assert (first.kind, first.queue, first.id, first.name) == (
        FeedEventKind.JOB_DIED,
        "default",
        "default-0",
        "t",
    )
    assert (first.at, first.reason, len(first.text)) == (5, "rejected", 300)
    assert (last.kind, last.count) == (FeedEventKind.LEFT_OUT, 60)
    assert not one.meter.events.take(6)


async def test_expiry_is_an_event_and_a_line_like_every_death(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = await counted()
    await one.engine.enqueue(
        [NewJob(id=f"j{number}", task="t", expires_ms=0) for number in range(50)]
    )
    await one.put(1)
    with caplog.at_level("WARNING", "holdfast.jobs"):
        await one.settle(Bury(Reason.REJECTED, Failure(type="ValueError", message="no")))
        result = await end_overdue_and_expired(one.engine, 100)
    assert result.buried == 50
    events = one.meter.events.take(5)
    assert [(each.kind, each.queue, each.id, each.name, each.reason) for each in events[:3]] == [
        (FeedEventKind.JOB_DIED, "default", "default-0", "t", "rejected"),
        (FeedEventKind.JOB_DIED, "default", "j0", "t", "expired"),
        (FeedEventKind.JOB_DIED, "default", "j1", "t", "expired"),
    ]
    assert (events[-1].kind, events[-1].count) == (FeedEventKind.LEFT_OUT, 11)
    first, second, *_ = caplog.messages
    assert first == "job default-0 of task t died in queue default (rejected): ValueError: no"
    text = "not started before its expiry, after 0 attempts"
    assert second == f"job j0 of task t died in queue default (expired): {text}"
    assert len(caplog.messages) == 40
    fields = json.loads(JsonFormatter().format(caplog.records[0]))
    wanted = {"job_id": "default-0", "task": "t", "queue": "default", "reason": "rejected"}
    assert {name: fields[name] for name in wanted} == wanted
    assert JobFormatter("%(message)s").format(caplog.records[0]) == first


async def test_a_handled_dead_letter_is_not_counted_again() -> None:
    one = await counted()
    await one.put(1)
    await one.settle(Bury(Reason.REJECTED))
    before = dict(one.meter.totals.queues["default"].counts)
    leases = await one.engine.lease(LeaseRequest(queues=("default",), dead=True))
    settled = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    assert await one.engine.settle(settled) == [Outcome.SETTLED]
    assert one.meter.totals.queues["default"].counts == before


async def test_batches_requests_and_lag_are_counted() -> None:
    one = await counted()
    await one.put(7)
    one.meter.requested("enqueue", 201, 3.5)
    one.meter.requested("enqueue", 503, 1)
    one.meter.lagged("server", 30)
    totals = one.meter.totals
    assert (totals.batches["enqueue"].count, totals.batches["enqueue"].total) == (1, 7)
    assert sorted(totals.requests["enqueue"]) == ["2xx", "5xx"]
    assert totals.lags["server"].count == 1


def test_failed_and_empty_calls_count_nothing() -> None:
    meter = Meter(lambda: 0)
    meter.record(EngineCalled(verb="enqueue", duration_ms=1, error="unavailable"))
    meter.record(EngineCalled(verb="lease", duration_ms=1, answer=[]))
    meter.record(EngineCalled(verb="get", duration_ms=1, answer=object()))
    assert not meter.changes
    assert not meter.totals.queues
