"""A caller with a prefix: everything outside it does not exist."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core import breaker, workers
from holdfast.core.model import (
    JobFilter,
    LeaseRequest,
    Queue,
    Record,
    Renewal,
    State,
)
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
    Release,
    Settlement,
    Verdict,
)
from holdfast.core.workers import WorkerRecord
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import Forbidden
from holdfast.ops.queues import Distribution, Distributions, Pause, save_pause
from holdfast.ops.redrives import REDRIVES, RedrivePlan, Redrives
from holdfast.ops.schedules import Schedules
from holdfast.ops.ticks import Schedule
from holdfast.ops.workers import Workers
from holdfast.process import wall_ms
from holdfast.server.access.authorized_engine import AuthorizedEngine
from holdfast.server.http.operation import Operation
from holdfast.server.settings import ServerSettings
from tests.server.direct_server import ALL_OPERATIONS, direct_server, operation_id
from tests.server.sample_namespace import (
    ExampleRequest,
    example_request,
    fill_namespace,
    read_everything,
    send_example,
)
from tests.server.samples import caller, job, leased, payload, store


async def prefixed(*scopes: str) -> tuple[MemoryEngine, AuthorizedEngine]:
    """Queues of mail. are the caller's; mail and other are not."""
    engine = await store("mail.in", "mail.out", "mail", "other")
    jobs = [job("own", "mail.in"), job("strange", "other", payload=b"secret")]
    await engine.enqueue(jobs)
    return engine, AuthorizedEngine(engine, caller(*scopes or ("operate",), prefix="mail."))


async def test_queues_outside_the_prefix_are_not_there() -> None:
    engine, guarded = await prefixed()
    assert [view.queue.name for view in await guarded.queues()] == ["mail.in", "mail.out"]
    for verb in (
        lambda: guarded.declare(Queue(name="other", paused=True)),
        lambda: guarded.declare(Queue(name="mail.in", dead_queue="other")),
        lambda: guarded.declare(Queue(name="fresh"), instead_of=None),
        lambda: guarded.flow("other", limit=1),
        lambda: guarded.lease(LeaseRequest(queues=("mail.in", "other"))),
        lambda: guarded.find(JobFilter(), limit=1),
        lambda: guarded.find(JobFilter(queue="other"), limit=1),
        lambda: guarded.tally(JobFilter(), "queue", limit=1),
        lambda: guarded.amend(JobFilter(), Cancel(), limit=1),
        lambda: guarded.amend(JobFilter(queue="other"), Cancel(), limit=1),
        lambda: guarded.amend(JobFilter(ids=("own",)), Move(queue="other"), limit=1),
        lambda: guarded.overdue(1),
        lambda: guarded.expired(1),
        lambda: guarded.finished(1),
        lambda: guarded.recount(1),
    ):
        with pytest.raises(Forbidden):
            await verb()
    assert len(await engine.queues()) == 5
    assert await guarded.declare(Queue(name="mail.in", dead_queue="mail.out"))


async def test_jobs_outside_the_prefix_are_not_there() -> None:
    engine, guarded = await prefixed()
    both = ("own", "strange")
    assert await guarded.get("own") is not None
    assert await guarded.get("strange") is None
    assert await guarded.waits("strange") is None
    page = await guarded.find(JobFilter(ids=both), limit=10)
    assert [each.id for each in page.jobs] == ["own"]
    assert [each.count for each in await guarded.tally(JobFilter(ids=both), "task", limit=9)] == [1]
    assert await guarded.tally(JobFilter(ids=("strange",)), "task", limit=9) == []
    for act in (Cancel(), Delete(force=True), Edit(payload=b"x"), Expedite()):
        assert await guarded.amend(JobFilter(ids=("strange",)), act, limit=10) == 0
    assert await guarded.lease(LeaseRequest(ids=("strange",))) == []
    assert await payload(engine, "strange") == b"secret"
    assert await guarded.amend(JobFilter(ids=both), Edit(priority=3), limit=10) == 1


async def test_leases_outside_the_prefix_are_lost() -> None:
    engine, guarded = await prefixed("consume")
    own, strange = await leased(engine, "own"), await leased(engine, "strange")
    lying = replace(strange, job=replace(strange.job, queue="mail.in"))
    assert await guarded.renew([Renewal(lease=lying), Renewal(lease=own)]) != [None, None]
    assert (await guarded.renew([Renewal(lease=lying)])) == [None]
    verdicts: tuple[Verdict, ...] = (Complete(), Bury(), Release())
    for verdict in verdicts:
        settlements = [Settlement(lease=lying, verdict=verdict)]
        assert await guarded.settle(settlements) == [Outcome.LOST]
    found = await engine.get("strange")
    assert found is not None
    assert found.state is State.LEASED
    forwarded = [Settlement(lease=own, verdict=Forward("other"))]
    assert await guarded.settle(forwarded) == [Outcome.REFUSED]
    then = [Settlement(lease=own, verdict=Complete(then=(job("x", "other"),)))]
    assert await guarded.settle(then) == [Outcome.REFUSED]
    assert await guarded.settle([Settlement(lease=own, verdict=Complete())]) == [Outcome.SETTLED]


async def test_no_job_is_enqueued_outside_the_prefix_or_after_such_a_job() -> None:
    _, guarded = await prefixed("produce")
    receipts = await guarded.enqueue(
        [
            job("a", "mail.in"),
            job("b", "other"),
            job("c", "mail"),
            job("d", "mail.in", after=("strange",)),
            job("e", "mail.in", after=("nothing",)),
            job("f", "mail.in", after=("a", "own")),
        ]
    )
    codes = ["", "forbidden", "forbidden", "unknown_parent", "unknown_parent", ""]
    assert [each.code for each in receipts] == codes
    # Whether it is there or not, the words are the same.
    assert receipts[3].text.replace("strange", "") == receipts[4].text.replace(
        "nothing", ""
    ).replace("job e", "job d")


async def test_a_job_that_leaves_the_prefix_while_leased_is_released() -> None:
    engine, _ = await prefixed()

    class Moving(MemoryEngine):
        async def lease(self, request: LeaseRequest) -> Any:
            await engine.amend(JobFilter(ids=request.ids), Move(queue="other"), limit=9)
            return await engine.lease(request)

    moving = Moving()
    moving.tally = engine.tally  # type: ignore[method-assign]
    moving.settle = engine.settle  # type: ignore[method-assign]
    guarded = AuthorizedEngine(moving, caller("consume", prefix="mail."))
    assert await guarded.lease(LeaseRequest(ids=("own",))) == []
    found = await engine.get("own")
    assert found is not None
    assert (found.state, found.attempt) == (State.WAITING, 0)


async def test_a_worker_of_the_prefix_has_its_own_queue() -> None:
    engine, guarded = await prefixed("consume")
    assert await guarded.declare(Queue(name="worker.mail.w1"), instead_of=None)
    with pytest.raises(Forbidden):
        await guarded.declare(Queue(name="worker.w1"), instead_of=None)

    def entry(name: str, *queues: str) -> Record:
        worker = WorkerRecord(
            name=name, id="i", host="h", pid=1, started_at=0, queues=dict.fromkeys(queues, 1)
        )
        return Record(kind=workers.KIND, key=name, value=msgspec.json.encode(worker))

    assert await guarded.save([entry("mail.w1", "mail.in", "worker.mail.w1")]) == ["saved"]
    for record in (entry("mail.w2", "other"), entry("w3", "mail.in")):
        with pytest.raises(Forbidden):
            await guarded.save([record])
    await engine.save([entry("w4", "other"), entry("w5", "mail.in", "other")])
    seen = {view.name: view.record.queues for view in await Workers(guarded).all()}
    assert seen == {"mail.w1": {"mail.in": 1, "worker.mail.w1": 1}, "w5": {"mail.in": 1}}
    with pytest.raises(Forbidden):
        await guarded.save([replace(entry("w4", "mail.in"), version=1)])


async def test_records_outside_the_prefix_are_not_there() -> None:
    engine, guarded = await prefixed()
    for name, queue in (("own", "mail.in"), ("strange", "other")):
        nightly = Schedule(name=name, every_ms=60_000, job=job("-", queue))
        await Schedules(engine, wall_ms).add(nightly)
        await Redrives(engine, wall_ms).start(RedrivePlan(wanted=JobFilter(queue=queue)))
        await save_pause(engine, queue, Pause(by=name))
    everything = await Redrives(engine, wall_ms).start(RedrivePlan(wanted=JobFilter()))
    await Distributions(engine).put(Distribution(source="mail.*", target="mail.out"))
    await Distributions(engine).put(Distribution(source="*", target="mail.in"))
    assert [each.name for each in await Schedules(guarded, wall_ms).all()] == ["own"]
    redrives = await Redrives(guarded, wall_ms).all()
    assert [view.redrive.plan.wanted.queue for view in redrives] == ["mail.in"]
    assert [each.target for each in await Distributions(guarded).all()] == ["mail.out"]
    assert [each.key for each in await guarded.load("pause", limit=9)] == ["mail.in"]
    for refused in (
        Schedules(guarded, wall_ms).add(Schedule(name="x", every_ms=60_000, job=job("-"))),
        Schedules(guarded, wall_ms).add(
            Schedule(name="strange", every_ms=60_000, job=job("-", "mail.in"))
        ),
        Redrives(guarded, wall_ms).start(RedrivePlan(wanted=JobFilter(queue="other"))),
        Distributions(guarded).put(Distribution(source="mail.*", target="other")),
        Distributions(guarded).put(Distribution(source="*", target="mail.out")),
        Distributions(guarded).put(Distribution(source="m*", target="mail.out")),
        save_pause(guarded, "other", Pause(by="x")),
        guarded.save([Record(kind="setting", key="lease", value=b"5s")]),
        guarded.save([REDRIVES.record(everything.id, None, 1)]),
    ):
        with pytest.raises(Forbidden):
            await refused
    assert await Schedules(guarded, wall_ms).remove("strange") is False
    assert await Schedules(guarded, wall_ms).remove("own")


async def test_a_page_of_records_is_full_despite_hidden_records() -> None:
    engine, guarded = await prefixed()
    names = [f"q{number:03d}" for number in range(50)]
    given = [
        Record(kind="pause", key=f"{'mail.' if number % 10 == 0 else 'other.'}{name}", value=b"{}")
        for number, name in enumerate(names)
    ]
    await engine.save(given)
    page = await guarded.load("pause", limit=3)
    assert [each.key for each in page] == ["mail.q000", "mail.q010", "mail.q020"]
    rest = await guarded.load("pause", after=page[-1].key, limit=3)
    assert [each.key for each in rest] == ["mail.q030", "mail.q040"]


async def test_breakers_are_shared_by_a_whole_namespace() -> None:
    engine, guarded = await prefixed("consume")
    record = Record(kind=breaker.KIND, key="task:t", value=b"{}")
    assert await guarded.save([record]) == ["saved"]
    assert len(await guarded.load(breaker.KIND, limit=9)) == 1
    assert len(await engine.load(breaker.KIND, limit=9)) == 1


@pytest.mark.parametrize("operation", ALL_OPERATIONS, ids=operation_id)
async def test_no_route_leads_outside_the_prefix(operation: Operation) -> None:
    """Requests for resources inside and outside the prefix, with the leases of others."""
    mark = "zzOTHERzz"
    async with direct_server(ServerSettings(auth=True)) as at:
        engine = at.engine()
        strange = await fill_namespace(engine, mark, queue="other")
        own = await fill_namespace(engine, "zzMAILzz", own="-m", queue="mail.q")
        token = await at.token("operate", "run-commands", prefix="mail.")
        before = await outside(engine)
        for asked in (
            example_request(operation, strange, "other"),
            example_request(operation, own, "mail.q"),
        ):
            reply = await send_example(at, operation, asked, token=token)
            assert reply.status < 500, reply.body
            assert mark.encode() not in reply.body
        # Without the name of a queue, which every example has.
        bare = ExampleRequest(asked.names, {}, asked.body)
        reply = await send_example(at, operation, bare, token=token)
        assert reply.status < 500, reply.body
        assert mark.encode() not in reply.body
        assert await outside(engine) == before


async def outside(engine: Engine) -> Any:
    """Everything outside the prefix. Breakers and quotas belong to the whole namespace."""
    found = await read_everything(engine)
    kinds = ("schedule", "redrive", "distribution", "pause", "setting", "worker", "order")
    return (
        [replace(each, deadline_at=None) for each in found["jobs"] if each.queue.startswith("o")],
        [view.queue for view in found["queues"] if not view.queue.name.startswith("mail.")],
        {
            kind: [
                record
                for record, _ in found["records"].get(kind, {}).values()
                if not record.key.endswith("-m")
                and not record.key.startswith("mail.")
                and b'"mail.q"' not in (record.value or b"")
            ]
            for kind in kinds
        },
    )
