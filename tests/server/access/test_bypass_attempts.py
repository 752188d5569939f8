"""Attempts to bypass admission or a prefix: each is refused like the direct way."""

import msgspec
import pytest

from holdfast.core.limits import Limit
from holdfast.core.model import JobFilter, Queue, Record, State
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import Forbidden
from holdfast.ops.redrives import REDRIVE_KIND, RedrivePlan, RedriveRecord, TakenJob
from holdfast.process import wall_ms
from holdfast.server.access.authorized_engine import AuthorizedEngine
from holdfast.testing.clock import ManualClock
from holdfast.upkeep.redriver import TAKEOVER_MS, Redriver
from tests.server.direct_server import direct_server
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


@pytest.mark.parametrize("prefix", ["w", "work", "worker", "worker."])
def test_a_prefix_like_worker_does_not_match_all_worker_queues(prefix: str) -> None:
    own = caller("operate", prefix=prefix)
    assert own.owns(f"{prefix}flow")
    assert own.owns("worker.a") == (prefix == "worker.")
    assert own.owns("worker.work.a") == (prefix in ("w", "work", "worker."))


@pytest.mark.parametrize("patch", [None, b'{"to":"me"}'])
async def test_a_redrive_stays_in_its_queue(patch: bytes | None) -> None:
    """Whatever its record says is pending, which a caller with a prefix may have written."""
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
