"""Inlets: every message becomes one job or one dead letter, whatever fails in between."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.model import (
    Job,
    JobFilter,
    LeaseRequest,
    NewJob,
    Queue,
    Reason,
    Receipt,
    State,
)
from holdfast.core.verdict import Complete, Delete, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.broker import Message
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.registry import open_engine
from holdfast.errors import EngineUnavailable, OutcomeUnknown
from holdfast.gates import inlet
from holdfast.gates.inlet import Inlet
from holdfast.gates.link import LinkFailed
from holdfast.ops.gates import Gate
from holdfast.ops.rejected import REJECTED_QUEUE
from holdfast.testing.clock import ManualClock
from tests.gates.scripted_broker import ScriptedBroker, ScriptedLink
from tests.killed import Killed

GATE = Gate(name="orders", direction="inlet", broker="main", queue="mail", source="in", task="send")


def message(id: str | None = "m1", **fields: Any) -> Message:
    return Message(message_id=id, **fields)


async def opened(
    engine: Engine, broker: ScriptedBroker, gate: Gate = GATE, **queue: Any
) -> tuple[Inlet, ScriptedLink]:
    await engine.declare(Queue(name=gate.queue, **queue))
    link = broker.open_link("test:")
    await link.open()
    return Inlet(engine, gate, link), link


async def jobs(engine: Engine, queue: str = "mail") -> list[Job]:
    found = (await engine.find(JobFilter(queue=queue), limit=1_000)).jobs
    whole = [await engine.get(job.id) for job in reversed(found)]
    return [job for job in whole if job is not None]


async def test_a_message_becomes_a_job(engine: Engine, broker: ScriptedBroker) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    given = message(
        body=b'{"to":"a"}',
        content_type="application/json",
        correlation_id="c1",
        content_encoding="gzip",
        type="order",
        reply_to="answers",
        headers={"traceparent": parent, "kind": "news"},
        priority=7,
        expires_ms=60_000,
        exchange="ex",
        routing_key="eu.mail",
    )
    broker.put("in", given)
    gate = replace(
        GATE,
        task="send.{header.kind}",
        tenant="{routing_key}",
        group="{type}",
        key="{message_id}!",
    )
    step, _ = await opened(engine, broker, gate)
    assert await step.once() == 0
    [job] = await jobs(engine)
    assert (job.id, job.task, job.tenant, job.group) == (
        "gate:orders:m1",
        "send.news",
        "eu.mail",
        "order",
    )
    assert (job.payload, job.content_type, job.key) == (given.body, "application/json", "m1!")
    assert (job.priority, (job.expires_at or 0) - job.created_at) == (7, 60_000)
    assert job.headers == {
        "traceparent": parent,
        "kind": "news",
        "gate.name": "orders",
        "gate.message_id": "m1",
        "gate.correlation_id": "c1",
        "gate.content_encoding": "gzip",
        "gate.type": "order",
        "gate.reply_to": "answers",
        "gate.exchange": "ex",
        "gate.routing_key": "eu.mail",
    }
    assert broker.left == []
    assert step.counts == {"received": 1, "enqueued": 1}


async def test_a_batch_is_one_enqueue(broker: ScriptedBroker, clock: ManualClock) -> None:
    calls: list[int] = []

    class Counting(MemoryEngine):
        async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
            calls.append(len(jobs))
            return await super().enqueue(jobs)

    engine = Counting(clock=clock)
    await engine.open()
    broker.put("in", *(message(f"m{n}") for n in range(300)))
    step, _ = await opened(engine, broker)
    await step.once()
    assert calls == [300]
    assert [job.id for job in await jobs(engine)] == [f"gate:orders:m{n}" for n in range(300)]


@pytest.mark.parametrize(
    "id",
    ["", "a b", "ü", "x" * 255, "sha256-00", "a\0b", "\ud800"],
    ids=["none", "space", "umlaut", "long", "prefix", "nul", "surrogate"],
)
async def test_any_message_id(engine: Engine, broker: ScriptedBroker, id: str) -> None:
    """One that no job can have is hashed; without one, each delivery is a job."""
    for _ in range(2):
        broker.put("in", message(id, body=b"x"))
    step, _ = await opened(engine, broker)
    await step.once()
    found = await jobs(engine)
    assert len(found) == (1 if id else 2)
    if id in ("a\0b", "\ud800"):
        assert "gate.message_id" not in found[0].headers
    assert broker.left == []


async def test_a_message_that_is_delivered_again_is_a_duplicate(
    engine: Engine, broker: ScriptedBroker
) -> None:
    """Also after its job is done and deleted."""
    step, _ = await opened(engine, broker, retention_ms=0)
    for round_ in range(3):
        broker.put("in", message("m1"))
        await step.once()
        if round_ == 0:
            [lease] = await engine.lease(LeaseRequest(queues=("mail",)))
            await engine.settle([Settlement(lease=lease, verdict=Complete())])
            for job in await engine.finished(10):
                await engine.amend(
                    JobFilter(ids=(job.id,)),
                    Delete(),
                    limit=1,
                )
            assert await jobs(engine) == []
    assert await jobs(engine) == []
    assert step.counts == {"received": 3, "enqueued": 1, "duplicates": 2}
    assert broker.left == []


async def test_equal_ids_of_two_gates_are_two_jobs(engine: Engine, broker: ScriptedBroker) -> None:
    for name in ("a", "b"):
        gate = replace(GATE, name=name, source=name)
        broker.put(name, message("m1"))
        step, _ = await opened(engine, broker, gate)
        await step.once()
    assert {job.id for job in await jobs(engine)} == {"gate:a:m1", "gate:b:m1"}


HOSTILE: dict[str, Message] = {
    "no header": message(headers={}),
    "long tenant": message(headers={"kind": "x" * 300}),
    "odd task": message(headers={"kind": "a b"}),
    "a command": message(headers={"kind": "command"}, body=b'{"command":["rm"]}'),
    "a webhook": message(headers={"kind": "webhook"}),
    "too large": message(headers={"kind": "k"}, body=b"x" * 2_000),
    "larger than any payload": message(headers={"kind": "k"}, body=b"x" * (1024 * 1024 + 1)),
    "10,000 headers": message(headers={"kind": "k"} | {f"h{n}": "x" for n in range(10_000)}),
    "a NUL": message(headers={"kind": "k", "x": "\0"}),
    "odd content type": message(headers={"kind": "k"}, content_type="ü"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_message_that_cannot_become_a_job_is_kept(
    engine: Engine, broker: ScriptedBroker, name: str
) -> None:
    given = HOSTILE[name]
    good = message("good", headers={"kind": "k"}, body=b"")
    broker.put("in", given, good)
    gate = replace(GATE, task="{header.kind}", tenant="{header.kind}")
    step, _ = await opened(engine, broker, gate, payload_max=1_000)
    await step.once()
    assert [job.id for job in await jobs(engine)] == ["gate:orders:good"]
    letters = await jobs(engine, REJECTED_QUEUE)
    assert {(job.state, job.reason) for job in letters} == {(State.DEAD, Reason.REJECTED)}
    bodies = [job.payload for job in letters if "headers" not in job.content_type]
    assert b"".join(bodies) == given.body
    assert step.counts == {"received": 2, "enqueued": 1, "rejected": 1}
    assert broker.left == []


@pytest.mark.parametrize("body", [b"", b"\0" * 1_000, bytes(range(256))])
async def test_bodies_are_stored_exactly(
    engine: Engine, broker: ScriptedBroker, body: bytes
) -> None:
    headers = {"nested": '{"a":[NaN,{"b":null}]}', "empty": ""}
    broker.put("in", message(body=body, headers=headers))
    step, _ = await opened(engine, broker)
    await step.once()
    [job] = await jobs(engine)
    assert (job.payload, job.content_type) == (body, "application/octet-stream")
    assert headers.items() <= job.headers.items()


async def test_headers_up_to_the_bound_are_kept_without_ours(
    engine: Engine, broker: ScriptedBroker
) -> None:
    headers = {f"h{n}": "x" for n in range(64)}
    broker.put("in", message(headers=headers))
    step, _ = await opened(engine, broker)
    await step.once()
    [job] = await jobs(engine)
    assert job.headers == headers


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"paused": True}, "queue mail is paused"),
        ({"accepting": False}, "queue mail does not accept new jobs"),
    ],
)
async def test_a_queue_that_takes_no_jobs_leaves_messages_at_their_source(
    engine: Engine, broker: ScriptedBroker, settings: dict[str, Any], text: str
) -> None:
    broker.put("in", message("m1"))
    step, link = await opened(engine, broker, **settings)
    assert await step.once() > 0
    assert (step.held, link.limits, broker.waiting) == (text, [], {"in": 1})


async def test_a_missing_queue_leaves_messages_at_their_source(
    engine: Engine, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inlet, "_SETTINGS_S", 0)
    broker.put("in", message("m1"))
    step, link = await opened(engine, broker)
    await engine.drop("mail")
    await step.once()
    assert (step.held, link.limits) == ("queue mail does not exist: create it", [])
    await engine.declare(Queue(name="mail"))
    await step.once()
    assert (step.held, broker.left) == ("", [])


async def test_no_more_is_received_than_the_queue_has_room_for(
    engine: Engine, broker: ScriptedBroker
) -> None:
    broker.put("in", *(message(f"m{n}") for n in range(10)))
    step, link = await opened(engine, broker, max_depth=4)
    await step.once()
    await step.once()
    assert (link.limits, broker.waiting, step.held) == ([4], {"in": 6}, "queue mail is full")
    leases = await engine.lease(LeaseRequest(queues=("mail",), limit=3))
    await engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in leases])
    await step.once()
    assert (len(await jobs(engine)), len(link.held), broker.waiting) == (7, 1, {"in": 2})


async def test_messages_that_found_no_room_are_held_and_not_returned(
    broker: ScriptedBroker, clock: ManualClock
) -> None:
    """Another process filled the queue between the look and the enqueue. A broker drops a message
    that was returned too often."""

    class Racing(MemoryEngine):
        racing = True

        async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
            if self.racing:
                self.racing = False
                await super().enqueue(
                    [NewJob(id=f"x{n}", task="t", queue="mail") for n in range(3)]
                )
            return await super().enqueue(jobs)

    engine = Racing(clock=clock)
    await engine.open()
    broker.put("in", *(message(f"m{n}") for n in range(5)))
    step, link = await opened(engine, broker, max_depth=5)
    assert await step.once() > 0
    assert "full" in step.held
    assert len(link.held) == 3
    assert await step.once() > 0
    leases = await engine.lease(LeaseRequest(queues=("mail",), limit=5))
    await engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in leases])
    assert await step.once() == 0
    assert link.limits == [5]
    assert broker.left == []
    assert {job.id for job in await jobs(engine)} >= {f"gate:orders:m{n}" for n in range(5)}


async def test_held_messages_return_after_a_while(
    engine: Engine, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inlet, "_SETTINGS_S", 0)
    step, link = await opened(engine, broker)
    await step.once()
    broker.put("in", message("m1"))
    await engine.declare(Queue(name="mail", accepting=False))
    link.held[1] = ("in", broker.queues["in"].popleft())
    await step.once()
    assert len(link.held) == 1
    monkeypatch.setattr(inlet, "_HOLD_S", 0)
    await step.once()
    assert (link.held, broker.waiting) == ({}, {"in": 1})
    await engine.declare(Queue(name="mail"))
    await step.once()
    assert broker.left == []


class FaultyEngine(MemoryEngine):
    """Raises errors in the order given, before (or, with an unknown outcome, after) an enqueue."""

    faults: Sequence[BaseException | None] = ()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        fault, self.faults = next(iter(self.faults), None), self.faults[1:]
        if fault is not None and not isinstance(fault, OutcomeUnknown):
            raise fault
        receipts = await super().enqueue(jobs)
        if fault is not None:
            raise fault
        return receipts


@pytest.mark.parametrize("id", ["m1", None])
async def test_an_unknown_outcome_is_repeated_with_the_same_ids(
    broker: ScriptedBroker, clock: ManualClock, id: str | None
) -> None:
    engine = FaultyEngine(clock=clock)
    await engine.open()
    engine.faults = [OutcomeUnknown("cut"), OutcomeUnknown("cut")]
    broker.put("in", message(id))
    step, _ = await opened(engine, broker)
    await step.once()
    assert len(await jobs(engine)) == 1
    assert broker.left == []


@pytest.mark.parametrize("id", ["m1", None])
@pytest.mark.parametrize("fault", [EngineUnavailable("down"), OutcomeUnknown("cut")])
async def test_messages_are_held_while_the_store_fails(
    broker: ScriptedBroker, clock: ManualClock, fault: Exception, id: str | None
) -> None:
    engine = FaultyEngine(clock=clock)
    await engine.open()
    engine.faults = [fault] * 6
    broker.put("in", message(id))
    step, link = await opened(engine, broker)
    for _ in range(2 if isinstance(fault, OutcomeUnknown) else 6):
        with pytest.raises(type(fault)):
            await step.once()
        assert len(link.held) == 1
    await step.once()
    assert len(await jobs(engine)) == 1
    assert (broker.left, link.limits) == ([], [500])


async def test_a_failure_of_the_link_is_told_apart(engine: Engine, broker: ScriptedBroker) -> None:
    step, _ = await opened(engine, broker)
    broker.down = "connection refused"
    with pytest.raises(LinkFailed, match="refused"):
        await step.once()


@pytest.mark.parametrize("call", ["receive", "acknowledge", "acknowledged"])
@pytest.mark.parametrize("fault", [Killed, EngineUnavailable])
async def test_cut_anywhere_each_message_is_one_job(
    engine: Engine, broker: ScriptedBroker, call: str, fault: type[BaseException]
) -> None:
    sent = [message(f"m{n}") for n in range(5)] + [message("bad", headers={"x": "\0"})]
    broker.put("in", *sent)
    step, link = await opened(engine, broker)
    cut = [1]

    def fail(name: str) -> None:
        if name == call and cut:
            cut.pop()
            raise fault

    broker.fail = fail
    with pytest.raises((Killed, LinkFailed)):
        await step.once()
    await link.close()
    again, _ = await opened(engine, broker)
    for _ in range(3):
        await again.once()
    assert len(await jobs(engine)) == 5
    assert len([job for job in await jobs(engine, REJECTED_QUEUE) if job.id.endswith("bad")]) == 1
    assert broker.left == []


async def test_random_cuts_of_several_inlets(clock: ManualClock, broker: ScriptedBroker) -> None:
    """Three inlets of one gate, with failures of the store and of the links at random."""
    seed = random.randrange(2**32)
    print(f"seed {seed}: set it in this test to repeat the run")
    dice = random.Random(seed)

    class Flaky(FaultyEngine):
        async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
            faults = [EngineUnavailable("down"), OutcomeUnknown("cut"), None, None, None]
            self.faults = [dice.choice(faults)]
            return await super().enqueue(jobs)

    engine = Flaky(clock=clock)
    await engine.open()
    await engine.declare(Queue(name="mail", max_depth=40))
    ids = [f"m{n}" for n in range(300)]
    broker.put(
        "in",
        *(message(id_, headers={"x": "\0"} if n % 7 == 0 else {}) for n, id_ in enumerate(ids)),
    )

    def fail(_: str) -> None:
        if dice.random() < 0.05:
            raise EngineUnavailable("cut")

    broker.fail = fail
    gate = replace(GATE, prefetch=20)

    async def run() -> None:
        while broker.left:
            link = broker.open_link("test:")
            step = Inlet(engine, gate, link)
            try:
                await link.open()
                while broker.left:
                    await asyncio.sleep(0)
                    with suppress(EngineUnavailable, OutcomeUnknown):
                        await step.once()
                    leases = await engine.lease(
                        LeaseRequest(queues=("mail",), limit=dice.randrange(1, 20))
                    )
                    await engine.settle(
                        [Settlement(lease=each, verdict=Complete()) for each in leases]
                    )
            except (LinkFailed, EngineUnavailable):
                await link.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(run())
    found = {job.id for job in await jobs(engine)}
    letters = {job.id for job in await jobs(engine, REJECTED_QUEUE) if ".part" not in job.id}
    assert found | letters == {f"gate:orders:{id_}" for id_ in ids}
    assert len(letters) == 43
    assert not found & letters


async def test_a_group_on_several_partitions(broker: ScriptedBroker, tmp_path: Path) -> None:
    """Its jobs must share a partition, so they have no key: ids tell duplicates."""
    urls = ",".join(f"sqlite:///{tmp_path}/{name}.db" for name in "ab")
    engine = open_engine(f"partitioned:{urls}")
    await engine.open()
    gate = replace(GATE, group="{header.g}")
    step, _ = await opened(engine, broker, gate)
    for _ in range(2):
        broker.put("in", *(message(f"m{n}", headers={"g": f"g{n % 3}"}) for n in range(9)))
        await step.once()
    assert step.counts == {"received": 18, "enqueued": 9, "duplicates": 9}
    assert len(await jobs(engine)) == 9
    await engine.close()


@pytest.mark.parametrize("postpones", [True, False])
async def test_messages_are_postponed_while_the_store_is_down(
    broker: ScriptedBroker, clock: ManualClock, postpones: bool
) -> None:
    """A broker that cannot postpone them keeps them here; each failure doubles the delay."""

    class Failing(MemoryEngine):
        is_down = True

        async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
            if self.is_down:
                raise EngineUnavailable("down")
            return await super().enqueue(jobs)

    engine = Failing(clock=clock)
    await engine.open()
    broker.postpones = postpones
    broker.put("in", *(message(f"m{n}") for n in range(3)))
    step, link = await opened(engine, broker)
    for _ in range(7):
        with pytest.raises(EngineUnavailable):
            await step.once()
        assert broker.held == (0 if postpones else 3)
    assert link.postponed == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
    engine.is_down = False
    await step.once()
    assert len(await jobs(engine)) == 3
    assert broker.left == []
    engine.is_down = True
    broker.put("in", message("m4"))
    with pytest.raises(EngineUnavailable):
        await step.once()
    assert link.postponed[-1] == 1_000


async def test_a_cheap_limit_is_the_room(engine: Engine, broker: ScriptedBroker) -> None:
    broker.limit_is_costly = False
    broker.put("in", *(message(f"m{n}") for n in range(9)))
    step, link = await opened(engine, broker, max_depth=4)
    await step.once()
    leases = await engine.lease(LeaseRequest(queues=("mail",), limit=3))
    await engine.settle([Settlement(lease=each, verdict=Complete()) for each in leases])
    await step.once()
    assert link.limits == [4, 3]
    assert broker.waiting == {"in": 2}
