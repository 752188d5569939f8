"""Attempts to bypass admission or a prefix: each is refused like the direct way."""

import msgspec
import pytest

from holdfast.core import breaker, workers
from holdfast.core.breaker import BreakerRecord
from holdfast.core.limits import Limit
from holdfast.core.model import JobFilter, Queue, Record, State
from holdfast.core.verdict import (
    Amendment,
    BuryWaiting,
    Cancel,
    Edit,
    Expedite,
    Move,
    Redrive,
    Retime,
)
from holdfast.core.workers import WorkerOrder
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import Forbidden
from holdfast.ops.queues import PAUSE_KIND, Pause
from holdfast.ops.redrives import REDRIVE_KIND, RedrivePlan, RedriveRecord, TakenJob
from holdfast.process import wall_ms
from holdfast.server.access.authorized_engine import AuthorizedEngine
from holdfast.server.settings import ServerSettings
from holdfast.testing.clock import ManualClock
from holdfast.upkeep.record_steps import TAKEOVER_MS
from holdfast.upkeep.redriver import Redriver
from tests.server.direct_server import SCOPED_OPERATIONS, direct_server, path_of
from tests.server.samples import caller, dead, job, payload


@pytest.mark.parametrize(
    "host", ["[::1].evil.example", "127.0.0.1:x.evil.example", "[::1", "localhost:7433@evil", "[]"]
)
async def test_host_names_that_only_look_local_are_refused(host: str) -> None:
    async with direct_server() as at:
        assert (await at.ask("GET", "/v1/queues", host=host)).status == 403


@pytest.mark.parametrize(
    "header",
    [
        *("via", "x_forwarded_host", "x_forwarded_proto", "x_forwarded_port", "x_forwarded_server"),
        *("x_client_ip", "true_client_ip", "cf_connecting_ip"),
    ],
)
async def test_any_proxy_header_makes_a_request_foreign(header: str) -> None:
    async with direct_server() as at:
        assert (await at.ask("GET", "/v1/queues", **{header: "127.0.0.1"})).status == 401


@pytest.mark.parametrize(
    "amendment",
    [
        Cancel(by="ann"),
        Redrive(by="ann"),
        BuryWaiting(by="ann"),
        Edit(by="ann", payload=b"2"),
        Move(by="ann", queue="b"),
        Retime(by="ann", delay_ms=5),
        Expedite(by="ann"),
    ],
)
async def test_a_timeline_names_the_caller_that_was_authenticated(amendment: Amendment) -> None:
    async with direct_server() as at:
        token = await at.token("operate", name="ops")
        engine = at.engine()
        for name in ("a", "b"):
            await engine.declare(Queue(name=name))
        is_redrive = isinstance(amendment, Redrive)
        state = State.DEAD if is_redrive else State.WAITING
        await (dead(engine, job("j", "a")) if is_redrive else engine.enqueue([job("j", "a")]))
        wanted = JobFilter(ids=("j",), states=(state,))
        assert await at.call("amend", token, wanted=wanted, amendment=amendment, limit=1) == 1
        changed = await engine.get("j")
        assert changed is not None
        assert changed.events[-1].by == "ops"


async def test_a_worker_cannot_cancel_a_job_in_the_name_of_another() -> None:
    async with direct_server() as at:
        token = await at.token("consume", name="workers")
        await at.engine().enqueue([job("j", "default")])
        waiting = await at.engine().get("j")
        assert waiting is not None
        wanted = JobFilter(ids=("j",), version=waiting.version)
        await at.call("amend", token, wanted=wanted, amendment=Cancel(by="ann"), limit=1)
        cancelled = await at.engine().get("j")
        assert cancelled is not None
        assert [event.by for event in cancelled.events] == ["workers"]


async def test_records_name_the_operator_that_was_authenticated() -> None:
    plan = RedrivePlan(wanted=JobFilter(queue="default"), by="ann")
    records = {
        workers.ORDER_KIND: WorkerOrder(cordoned=True, by="ann"),
        breaker.KIND: BreakerRecord(by="ann"),
        PAUSE_KIND: Pause(by="ann", text="by ann"),
        REDRIVE_KIND: RedriveRecord(id="r", plan=plan, total=1),
    }
    async with direct_server() as at:
        engine = at.engine()
        tokens = [await at.token("operate", name=name) for name in ("ops", "upkeep")]
        for kind, record in records.items():
            key = f"{breaker.TASK_PREFIX}r" if kind == breaker.KIND else "r"
            value = msgspec.json.encode(record)
            for version, token in enumerate(tokens):
                # The second one notes progress in a record that another operator has made.
                saved = Record(kind=kind, key=key, value=value, version=version)
                await at.call("save", token, records=[saved])
                [stored] = await engine.load(kind, limit=1)
                value = stored.value or b""
                assert b'"by":"ops"' in value
                assert b'"by":"ann"' not in value


async def test_a_token_for_commands_alone_reads_nothing() -> None:
    async with direct_server(ServerSettings(auth=True)) as at:
        token = await at.token("run-commands")
        await at.engine().enqueue([job("j", "default")])
        names = dict.fromkeys(("queue", "id", "name", "named", "whose", "kind", "key"), "j")
        for operation in SCOPED_OPERATIONS:
            reply = await at.ask(operation.method, path_of(operation, names), token=token)
            assert (reply.status, reply.code) == (403, "forbidden"), operation.path


@pytest.mark.parametrize("prefix", ["w", "work", "worker", "worker."])
def test_a_prefix_like_worker_does_not_match_all_worker_queues(prefix: str) -> None:
    own = caller("operate", prefix=prefix)
    assert own.owns(f"{prefix}flow")
    assert own.owns("worker.a") == (prefix == "worker.")
    assert own.owns("worker.work.a") == (prefix in ("w", "work", "worker."))


@pytest.mark.parametrize("patch", [None, b'{"to":"me"}'])
async def test_a_redrive_stays_in_its_queue(patch: bytes | None) -> None:
    """Although the jobs that its record lists as pending may come from a caller with a prefix."""
    clock = ManualClock()
    engine = MemoryEngine(clock=clock)
    await engine.open()
    for name in ("mail.in", "other"):
        await engine.declare(Queue(name=name))
    await dead(engine, job("own", "mail.in", payload=b"{}"), job("strange", "other", payload=b"{}"))
    letters = [await engine.get(id_) for id_ in ("own", "strange")]
    pending = tuple(TakenJob(each.id, each.version) for each in letters if each is not None)
    plan = RedrivePlan(
        wanted=JobFilter(queue="mail.in", task="t", states=(State.DEAD,)), patch=patch
    )
    redrive = RedriveRecord(id="r", plan=plan, total=1)
    guarded = AuthorizedEngine(engine, caller("operate", prefix="mail."))

    async def save(record: RedriveRecord, version: int) -> None:
        value = msgspec.json.encode(record)
        entry = Record(kind=REDRIVE_KIND, key="r", value=value, version=version)
        assert await guarded.save([entry]) == ["saved"]

    await save(redrive, 0)
    try:
        await save(msgspec.structs.replace(redrive, pending=pending), 1)
    except Forbidden:
        return
    clock.advance(TAKEOVER_MS)
    await Redriver(engine, wall_ms).once()
    own, strange = await engine.get("own"), await engine.get("strange")
    assert own is not None
    assert strange is not None
    assert (own.state, strange.state) == (State.WAITING, State.DEAD)
    assert await payload(engine, "strange") == b"{}"


async def test_limits_need_operate_and_task_limits_consume() -> None:
    engine = MemoryEngine()
    await engine.open()
    whole = Limit(name="api", concurrency=1)
    of_task = Limit(name="t", task="t", concurrency=9)
    known = Queue(name="mail", limits=(whole, of_task))
    await engine.declare(known)
    lifted = msgspec.structs.replace(known, limits=())
    slower = msgspec.structs.replace(
        known, limits=(whole, Limit(name="t", task="t", concurrency=1))
    )
    worker = AuthorizedEngine(engine, caller("consume"))
    producer = AuthorizedEngine(engine, caller("produce"))
    for guarded, queue in ((worker, lifted), (producer, lifted), (producer, slower)):
        with pytest.raises(Forbidden):
            await guarded.declare(queue, instead_of=known)
    with pytest.raises(Forbidden):
        await producer.declare(Queue(name="new", limits=(of_task,)), instead_of=None)
    assert await producer.declare(Queue(name="new"), instead_of=None)
    assert await worker.declare(slower, instead_of=known)
