"""The dead-letter handler, with a broker in this process and a manual clock: the ledger decides
about every message, whatever the broker says, and nothing is acknowledged before."""

import asyncio
import json
import os
import random

import pytest
from msgspec.structs import replace

from holdfast.core.model import (
    EventKind,
    Job,
    JobFilter,
    LeaseRequest,
    NewJob,
    Overrides,
    Page,
    Queue,
    Reason,
    Reroute,
    State,
)
from holdfast.core.verdict import Amendment, Complete, Edit, Outcome, Redrive, Settlement
from holdfast.engines.base import Engine
from holdfast.errors import EngineUnavailable, NotAccepting, OutcomeUnknown
from holdfast.events import DeadMessagesHandled
from holdfast.ops.rejected import REJECTED_QUEUE
from holdfast.ops.settings import save_setting
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import DeadLetterHandler, QueueWatch, Reaper, Upkeep
from tests.ops.test_reroute import workers
from tests.upkeep.fake_broker import FakeBroker, FakeBrokered
from tests.upkeep.faulty_engine import RecordingListener

SECOND = 1_000
MINUTE = 60 * SECOND


@pytest.fixture
def broker(clock: ManualClock) -> FakeBroker:
    return FakeBroker(clock)


@pytest.fixture
async def ledger(engine: Engine, broker: FakeBroker) -> FakeBrokered:
    for name in ("a", "b"):
        await engine.declare(Queue(name=f"worker.{name}"))
    return FakeBrokered(engine, broker)


@pytest.fixture
def listener() -> RecordingListener:
    return RecordingListener()


@pytest.fixture
def handler(
    ledger: FakeBrokered, broker: FakeBroker, listener: RecordingListener
) -> DeadLetterHandler:
    return DeadLetterHandler(ledger, broker, tell=listener)


def addressed(id: str = "j", *, expires_ms: int = 5 * MINUTE, most: int = 0) -> NewJob:
    overrides = Overrides(reroute=Reroute(most=most) if most else None)
    return NewJob(id=id, task="t", queue="worker.a", expires_ms=expires_ms, overrides=overrides)


async def read(engine: Engine, id: str = "j") -> Job:
    job = await engine.get(id)
    assert job is not None
    return job


def counts(listener: RecordingListener) -> dict[str, int]:
    """How many messages had each outcome."""
    found: dict[str, int] = {}
    for event in listener.events:
        if isinstance(event, DeadMessagesHandled):
            for outcomes in event.outcomes.values():
                for outcome, count in outcomes.items():
                    found[outcome] = found.get(outcome, 0) + count
    return found


async def test_a_job_that_no_worker_takes_within_its_ttl_dies_with_the_reason(
    ledger: FakeBrokered,
    broker: FakeBroker,
    clock: ManualClock,
    handler: DeadLetterHandler,
    listener: RecordingListener,
) -> None:
    await ledger.addressed(addressed())
    clock.advance(5 * MINUTE - 1)
    assert await handler.once()
    assert (await read(ledger)).state is State.WAITING
    clock.advance(1_001)
    assert await handler.once() == 0
    job = await read(ledger)
    assert (job.state, job.reason) == (State.DEAD, Reason.EXPIRED)
    [event] = job.events
    assert (event.kind, event.by) == (EventKind.BURIED, "dead-letter handler")
    assert event.failure is not None
    assert event.failure.message == "worker a did not take it within its TTL of 5m"
    assert '"reason":"expired"' in event.failure.trace
    assert '"queue":"holdfast.default.worker.a"' in event.failure.trace
    assert (broker.dead, broker.taken) == (broker.dead.__class__(), {})
    assert listener.events == [
        DeadMessagesHandled(outcomes={"worker.a": {"buried": 1}}, delays_ms=(1_000,))
    ]


async def test_a_job_goes_to_another_worker_once_with_its_history(
    ledger: FakeBrokered,
    broker: FakeBroker,
    clock: ManualClock,
    handler: DeadLetterHandler,
    listener: RecordingListener,
) -> None:
    await workers(ledger, "a", "b")
    await ledger.addressed(addressed(most=2))
    clock.advance(5 * MINUTE)
    await workers(ledger, "b")
    await handler.once()
    job = await read(ledger)
    assert (job.state, job.queue, job.origin) == (State.WAITING, "worker.b", "worker.a")
    [event] = job.events
    assert (event.kind, event.by) == (EventKind.MOVED, "dead-letter handler")
    assert event.text.startswith(
        "from worker.a to worker.b: not taken within its TTL of 5m; history at the broker: ["
    )
    broker.put_dead(id="j", queue="worker.a")
    await handler.once()
    assert (await read(ledger)).version == job.version, "the message came twice"
    assert counts(listener) == {"rerouted": 1, "moved": 1}


async def test_a_job_that_nobody_else_can_take_dies(
    ledger: FakeBrokered, clock: ManualClock, handler: DeadLetterHandler
) -> None:
    await ledger.addressed(addressed(most=2))
    clock.advance(5 * MINUTE)
    await handler.once()
    failure = (await read(ledger)).failures[-1].failure
    assert failure is not None
    assert failure.message.endswith("TTL of 5m; no other worker could take it")


@pytest.mark.parametrize("new_ms", [10 * MINUTE, 2 * MINUTE])
async def test_the_ttl_was_changed_meanwhile(
    ledger: FakeBrokered,
    broker: FakeBroker,
    clock: ManualClock,
    handler: DeadLetterHandler,
    listener: RecordingListener,
    new_ms: int,
) -> None:
    """A longer one: the message comes too early, and gets the time that is left. A shorter one: the
    message comes too late, and the reaper was there before."""
    await ledger.addressed(addressed())
    clock.advance(MINUTE)
    await ledger.amend(JobFilter(ids=("j",)), Edit(expires_ms=new_ms), limit=1)
    reaper = Reaper(ledger)
    ends_ms = clock.wall_ms() + new_ms
    while (await read(ledger)).state is State.WAITING:
        clock.advance(30 * SECOND)
        await handler.once()
        await reaper.once()
    assert clock.wall_ms() == ends_ms
    assert (await read(ledger)).reason is Reason.EXPIRED
    if new_ms > 4 * MINUTE:
        assert counts(listener) == {"redelivered": 1, "buried": 1}
        return
    clock.advance(4 * MINUTE)
    await handler.once()
    assert counts(listener) == {"finished": 1}


async def test_behind_a_longer_ttl_the_reaper_is_first(
    ledger: FakeBrokered,
    broker: FakeBroker,
    clock: ManualClock,
    handler: DeadLetterHandler,
    listener: RecordingListener,
) -> None:
    await ledger.addressed(addressed("long", expires_ms=20 * MINUTE), addressed("short"))
    clock.advance(5 * MINUTE)
    await handler.once()
    assert (await read(ledger, "short")).state is State.WAITING, "the broker has not given it up"
    await Reaper(ledger).once()
    assert (await read(ledger, "short")).state is State.DEAD
    clock.advance(15 * MINUTE)
    await handler.once()
    assert (await read(ledger, "long")).state is State.DEAD
    assert counts(listener) == {"buried": 1, "finished": 1}


async def test_switched_off_it_takes_nothing_and_the_reaper_ends_the_job(
    ledger: FakeBrokered, broker: FakeBroker, clock: ManualClock, listener: RecordingListener
) -> None:
    handler = DeadLetterHandler(
        ledger, broker, tell=listener, clock_s=lambda: clock.boot_ms() / 1000
    )
    await save_setting(ledger, "dead-letter-handler", "no")
    await ledger.addressed(addressed())
    clock.advance(5 * MINUTE)
    assert await handler.once() is None
    assert (await read(ledger)).state is State.WAITING
    await Reaper(ledger).once()
    assert (await read(ledger)).state is State.DEAD
    await save_setting(ledger, "dead-letter-handler", None)
    assert await handler.once() is None, "the setting is read every ten seconds"
    clock.advance(10 * SECOND)
    assert await handler.once() == 0
    assert counts(listener) == {"finished": 1}


async def test_finished_leased_moved_and_missing_jobs_are_left_alone(
    ledger: FakeBrokered,
    broker: FakeBroker,
    clock: ManualClock,
    handler: DeadLetterHandler,
    listener: RecordingListener,
) -> None:
    await ledger.enqueue([addressed(id_) for id_ in ("done", "leased", "moved")])
    leases = await ledger.lease(LeaseRequest(ids=("done", "leased"), limit=2, lease_ms=60 * MINUTE))
    done = next(lease for lease in leases if lease.id == "done")
    assert await ledger.settle([Settlement(lease=done, verdict=Complete())]) == [Outcome.SETTLED]
    for id_ in ("done", "leased", "missing"):
        broker.put_dead(id=id_, queue="worker.a")
    broker.put_dead(id="moved", queue="worker.b")
    before = [await read(ledger, id_) for id_ in ("done", "leased", "moved")]
    clock.advance(6 * MINUTE)
    await handler.once()
    assert [await read(ledger, id_) for id_ in ("done", "leased", "moved")] == before
    assert not broker.dead
    assert not broker.taken
    outcomes = dict.fromkeys(("finished", "leased", "moved", "missing"), 1)
    assert counts(listener) == outcomes
    [event] = listener.events
    assert isinstance(event, DeadMessagesHandled)
    assert event.outcomes == {
        "worker.a": {"finished": 1, "leased": 1},
        "": {"moved": 1, "missing": 1},
    }, "a queue that only the message names is not counted"


async def test_a_redriven_job_without_an_expiry_gets_a_new_message(
    ledger: FakeBrokered, broker: FakeBroker, clock: ManualClock, handler: DeadLetterHandler
) -> None:
    await ledger.addressed(addressed())
    clock.advance(5 * MINUTE)
    await handler.once()
    await ledger.amend(JobFilter(ids=("j",)), Redrive(), limit=1)
    broker.put_dead(id="j", queue="worker.a")
    await handler.once()
    [(message, at)] = broker.queues["worker.a"]
    assert (message.id, message.expires_ms, at) == ("j", None, None)


async def test_a_message_that_comes_early_by_another_clock_gets_at_least_a_second(
    ledger: FakeBrokered, broker: FakeBroker, clock: ManualClock, handler: DeadLetterHandler
) -> None:
    await ledger.enqueue([addressed()])
    clock.advance(5 * MINUTE - 1)
    broker.put_dead(id="j", queue="worker.a")
    broker.put_dead(id="j", queue="worker.a")
    assert await handler.once() == SECOND, "a pause, so that nothing goes round without one"
    assert [each.expires_ms for each, _ in broker.queues["worker.a"]] == [SECOND], "one for both"


async def test_a_policy_that_gives_messages_up_at_once_makes_no_hot_loop(
    ledger: FakeBrokered, broker: FakeBroker, clock: ManualClock, handler: DeadLetterHandler
) -> None:
    broker.policy_ms = 0
    await ledger.addressed(*[addressed(f"{number}") for number in range(10)])
    for _ in range(5):
        assert await handler.once() == SECOND
    clock.advance(5 * MINUTE)
    assert await handler.once() == 0
    assert (await read(ledger, "9")).state is State.DEAD


async def test_duplicates_in_one_batch_and_in_two(
    ledger: FakeBrokered,
    broker: FakeBroker,
    clock: ManualClock,
    handler: DeadLetterHandler,
    listener: RecordingListener,
) -> None:
    await ledger.enqueue([addressed()])
    clock.advance(5 * MINUTE)
    for _ in range(3):
        broker.put_dead(id="j", queue="worker.a")
    await handler.once()
    broker.put_dead(id="j", queue="worker.a")
    await handler.once()
    job = await read(ledger)
    assert (job.state, len(job.events)) == (State.DEAD, 1)
    assert counts(listener) == {"buried": 1, "finished": 3}


class Ledger(FakeBrokered):
    """Counts searches, and fails or is interrupted as planned."""

    def __init__(self, engine: Engine, broker: FakeBroker) -> None:
        super().__init__(engine, broker)
        self.finds = 0
        self.error: Exception | None = None
        self.lost_answer: Exception | None = None

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        self.finds += 1
        self._check()
        return await super().find(wanted, limit=limit, after=after)

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list:  # type: ignore[type-arg]
        self._check()
        return await super().load(kind, after=after, limit=limit)

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        self._check()
        changed = await super().amend(wanted, amendment, limit=limit)
        if self.lost_answer is not None:
            error, self.lost_answer = self.lost_answer, None
            raise error
        return changed

    def _check(self) -> None:
        if self.error is not None:
            raise self.error


async def test_a_batch_is_found_with_one_call(
    ledger: FakeBrokered, broker: FakeBroker, clock: ManualClock, listener: RecordingListener
) -> None:
    counting = Ledger(ledger, broker)
    await ledger.addressed(*[addressed(f"{number}") for number in range(250)])
    clock.advance(5 * MINUTE)
    handler = DeadLetterHandler(counting, broker, tell=listener)
    for _ in range(3):
        assert await handler.once() == 0
    assert counting.finds == 3
    assert counts(listener) == {"buried": 250}


async def test_with_the_ledger_down_messages_are_put_back_and_not_taken_again(
    ledger: FakeBrokered, broker: FakeBroker, clock: ManualClock
) -> None:
    down = Ledger(ledger, broker)
    handler = DeadLetterHandler(down, broker)
    await handler.once()
    await ledger.addressed(addressed())
    clock.advance(5 * MINUTE)
    down.error = EngineUnavailable("the ledger is down")
    for _ in range(3):
        with pytest.raises(EngineUnavailable):
            await handler.once()
        assert len(broker.dead) == 1, "never acknowledged before the ledger answered"
        assert not broker.taken
    [message] = broker.dead
    assert message.tag == 1
    down.error = None
    assert await handler.once() == 0
    assert (await read(ledger)).state is State.DEAD
    assert not broker.dead


async def test_with_the_broker_down_it_waits(
    ledger: FakeBrokered, broker: FakeBroker, clock: ManualClock, handler: DeadLetterHandler
) -> None:
    await ledger.addressed(addressed())
    clock.advance(5 * MINUTE)
    broker.error = "connection refused"
    assert await handler.once() is None
    broker.error = ""
    assert await handler.once() == 0
    assert (await read(ledger)).state is State.DEAD


async def test_an_unknown_outcome_is_decided_by_the_next_delivery(
    ledger: FakeBrokered, broker: FakeBroker, clock: ManualClock, listener: RecordingListener
) -> None:
    unsure = Ledger(ledger, broker)
    handler = DeadLetterHandler(unsure, broker, tell=listener)
    await ledger.addressed(addressed())
    clock.advance(5 * MINUTE)
    unsure.lost_answer = OutcomeUnknown("the answer was lost")
    with pytest.raises(OutcomeUnknown):
        await handler.once()
    assert len(broker.dead) == 1
    await handler.once()
    assert len((await read(ledger)).events) == 1
    assert counts(listener) == {"finished": 1}


async def test_killed_between_the_write_and_the_acknowledgement(
    ledger: FakeBrokered,
    broker: FakeBroker,
    clock: ManualClock,
    handler: DeadLetterHandler,
    listener: RecordingListener,
) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    await workers(ledger, "a", "b")
    await ledger.addressed(addressed("buried"), addressed("rerouted", most=1))
    clock.advance(5 * MINUTE)
    await workers(ledger, "b")
    broker.put_dead(body=b"not ours")
    broker.before_settle = kill
    with pytest.raises(Killed):
        await handler.once()
    after = [await read(ledger, id_) for id_ in ("buried", "rerouted")]
    assert [job.state for job in after] == [State.DEAD, State.WAITING]
    broker.before_settle = lambda: None
    broker.cut()
    await DeadLetterHandler(ledger, broker, tell=listener).once()
    assert [await read(ledger, id_) for id_ in ("buried", "rerouted")] == after
    assert counts(listener) == {"finished": 1, "moved": 1, "rejected": 1}
    kept = await ledger.find(JobFilter(queue=REJECTED_QUEUE), limit=10)
    assert [job.state for job in kept.jobs] == [State.DEAD]
    assert not broker.dead
    assert not broker.taken


@pytest.mark.parametrize("change", [Edit(expires_ms=MINUTE), Edit(priority=5)])
async def test_a_change_between_the_read_and_the_write_wins(
    ledger: FakeBrokered,
    broker: FakeBroker,
    clock: ManualClock,
    listener: RecordingListener,
    change: Edit,
) -> None:
    class Meddling(FakeBrokered):
        async def amend(self, wanted: JobFilter, *rest: object, **more: object) -> int:
            await super().amend(JobFilter(ids=("j",)), change, limit=1)
            return await super().amend(wanted, *rest, **more)  # type: ignore[arg-type]

    await ledger.addressed(addressed())
    clock.advance(5 * MINUTE)
    await DeadLetterHandler(Meddling(ledger, broker), broker, tell=listener).once()
    assert (await read(ledger)).state is State.WAITING
    assert len(broker.dead) == 1, "it comes again, and is decided anew"
    await DeadLetterHandler(ledger, broker, tell=listener).once()
    if change.expires_ms is None:
        assert counts(listener) == {"buried": 1}
        return
    assert counts(listener) == {"redelivered": 1}
    assert broker.queues["worker.a"][0][0].expires_ms == MINUTE


async def test_a_worker_that_takes_the_job_at_the_moment_of_expiry(
    ledger: FakeBrokered, broker: FakeBroker, clock: ManualClock
) -> None:
    """Two handlers, a reaper and a worker at the same moment: exactly one outcome each."""
    seed = int(os.environ.get("HOLDFAST_SEED") or random.randrange(10**6))
    path = "tests/upkeep/test_dead_letter_handler.py"
    replay = f"HOLDFAST_SEED={seed} ./hf test {path} -k moment_of_expiry"
    print(f"replay: {replay}")
    dice = random.Random(seed)
    rounds = 20
    taken = buried = 0
    for number in range(rounds):
        id_ = f"{number}"
        await ledger.addressed(addressed(id_, expires_ms=SECOND))
        clock.advance(SECOND - dice.randrange(2))
        broker.put_dead(id=id_, queue="worker.a")

        async def work(id_: str = id_) -> int:
            leases = await ledger.lease(LeaseRequest(ids=(id_,), worker="a"))
            settlements = [Settlement(lease=each, verdict=Complete()) for each in leases]
            outcomes = await ledger.settle(settlements) if settlements else []
            assert outcomes == [Outcome.SETTLED] * len(leases)
            return len(leases)

        async def pass_time() -> int:
            clock.advance(1)
            return 0

        steps = [
            work(),
            pass_time(),
            DeadLetterHandler(ledger, broker).once(),
            DeadLetterHandler(ledger, broker).once(),
            Reaper(ledger).once(),
        ]
        dice.shuffle(steps)
        await asyncio.gather(*(asyncio.create_task(step) for step in steps))
        clock.advance(2 * SECOND)
        while broker.dead or any(broker.queues.values()):
            await DeadLetterHandler(ledger, broker).once()
        job = await read(ledger, id_)
        assert (job.state, job.attempt, len(job.events)) in (
            (State.DONE, 1, 0),
            (State.DEAD, 0, 1),
        ), replay
        taken += job.state is State.DONE
        buried += job.state is State.DEAD
    assert taken + buried == rounds


DEEP: dict[str, object] = {}
for _ in range(2_000):
    DEEP = {"nested": DEEP}

HOSTILE = [
    {},
    {"body": b"\x00" * 100, "content_type": "application/json"},
    {"body": b'{"id": "no such job"}', "queue": ""},
    {"body": b"x" * (1024 * 1024)},
    {"body": bytes(range(256)) * 40_960, "content_type": "image/png"},
    {"headers": {f"h{number}": "v" for number in range(10_000)}},
    {"headers": {"nul": "a\x00b", "nested": '{"a": {"b": [NaN]}}'}},
    {"headers": {"": "empty name", "surrogate": "\ud800"}},
    {"content_type": "\x1b[2J", "body": b"{"},
    {"history": ({"time": float("nan"), "queue": "\ud800\x00"}, DEEP)},
    {"id": "../../etc", "body": b"an id that is none"},
    {"id": "x" * 129},
    {"id": "a\x00b"},
    {"id": ""},
    {"id": "j", "queue": "default", "body": b"not addressed to a worker"},
    {"id": "j", "queue": "worker."},
    {"id": "j", "queue": "worker.\x00"},
    {"id": "j", "queue": "worker." + "x" * 100, "reason": "\ud800" * 1_000},
]


def part_number(job: Job) -> int:
    return int(job.labels.get("part", "1 of 1").split()[0])


@pytest.mark.parametrize("fields", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_message_that_is_not_ours_is_kept_whole(
    ledger: FakeBrokered,
    broker: FakeBroker,
    handler: DeadLetterHandler,
    listener: RecordingListener,
    fields: dict[str, object],
) -> None:
    message = broker.put_dead(**fields)
    await handler.once()
    # Delivered again, it is the same dead letter.
    broker.dead.append(replace(message, headers={**message.headers, "x-delivery-count": "1"}))
    await handler.once()
    assert counts(listener) == {"rejected": 2}
    jobs = [
        await read(ledger, job.id)
        for job in (await ledger.find(JobFilter(queue=REJECTED_QUEUE), limit=100)).jobs
    ]
    assert {(job.state, job.reason) for job in jobs} == {(State.DEAD, Reason.REJECTED)}
    assert {len(job.events) for job in jobs} == {1}
    jobs.sort(key=part_number)
    apart = b"".join(job.payload for job in jobs if "holdfast.headers" in job.content_type)
    bodies = [job for job in jobs if "holdfast.headers" not in job.content_type]
    assert b"".join(job.payload for job in bodies) == message.body
    if apart:
        whole = json.loads(apart)
        assert whole == {"content_type": message.content_type, "headers": message.headers}
    else:
        assert bodies[0].headers == message.headers
        assert bodies[0].content_type == (message.content_type or "application/octet-stream")
    assert not broker.dead
    assert not broker.taken


async def test_killed_while_keeping_a_message(
    ledger: FakeBrokered, broker: FakeBroker, clock: ManualClock, handler: DeadLetterHandler
) -> None:
    """No worker runs what was stored, and it becomes a dead letter even if the message is lost."""
    stopped = Ledger(ledger, broker)
    broker.put_dead(body=b"lost")
    with pytest.raises(EngineUnavailable):
        await DeadLetterHandler(stopped_at_amend(stopped), broker).once()
    [job] = (await ledger.find(JobFilter(queue=REJECTED_QUEUE), limit=10)).jobs
    assert job.state is State.WAITING
    assert await ledger.lease(LeaseRequest(queues=(REJECTED_QUEUE,))) == []
    broker.dead.clear()
    clock.advance(MINUTE)
    await Reaper(ledger).once()
    kept = await read(ledger, job.id)
    assert (kept.state, kept.reason, kept.payload) == (State.DEAD, Reason.EXPIRED, b"lost")


def stopped_at_amend(ledger: Ledger) -> Ledger:
    async def amend(*_: object, **__: object) -> int:
        raise EngineUnavailable("gone")

    ledger.amend = amend  # type: ignore[method-assign]
    return ledger


async def test_a_message_that_cannot_be_kept_comes_again_and_delays_no_other(
    ledger: FakeBrokered, broker: FakeBroker, clock: ManualClock, handler: DeadLetterHandler
) -> None:
    await ledger.declare(Queue(name=REJECTED_QUEUE, accepting=False))
    await ledger.addressed(addressed())
    clock.advance(5 * MINUTE)
    broker.put_dead(body=b"not ours")
    with pytest.raises(NotAccepting, match="queue rejected refused a dead message"):
        await handler.once()
    assert (await read(ledger)).state is State.DEAD
    assert [message.body for message in broker.dead] == [b"not ours"]
    await ledger.declare(Queue(name=REJECTED_QUEUE))
    await handler.once()
    assert not broker.dead


async def test_two_different_messages_with_the_same_body_are_two_dead_letters(
    ledger: FakeBrokered, broker: FakeBroker, handler: DeadLetterHandler
) -> None:
    for seconds in (1, 2):
        broker.put_dead(body=b"same", history=({"time": seconds, "reason": "rejected"},))
    await handler.once()
    found = await ledger.find(JobFilter(queue=REJECTED_QUEUE, reason=Reason.REJECTED), limit=10)
    assert len(found.jobs) == 2


async def test_upkeep_runs_it_where_there_is_a_broker(ledger: FakeBrokered, engine: Engine) -> None:
    kinds = (DeadLetterHandler, QueueWatch)
    assert len([each for each in Upkeep(ledger).services if isinstance(each, kinds)]) == 2
    assert not [each for each in Upkeep(engine).services if isinstance(each, kinds)]
