"""The engine of a caller: which verbs need which scopes."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core import workers
from holdfast.core.model import (
    JobFilter,
    LeaseRequest,
    Queue,
    Record,
    State,
)
from holdfast.core.verdict import (
    Cancel,
    Complete,
    Delete,
    Edit,
    Settlement,
)
from holdfast.core.workers import WorkerOrder
from holdfast.engines.base import ANY, Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, Forbidden, OutcomeUnknown
from holdfast.server.access.authorized_engine import AccessControls, AuthorizedEngine
from holdfast.server.access.caller import ANONYMOUS, LOCAL_CALLER
from holdfast.server.access.permissions import SCOPES
from tests.server.samples import caller, job, leased, store

VERBS: dict[str, Any] = {
    "declare": lambda e: e.declare(Queue(name="default", paused=True)),
    "drop": lambda e: e.drop("default"),
    "queues": lambda e: e.queues(),
    "enqueue": lambda e: e.enqueue([job("x")]),
    "lease": lambda e: e.lease(LeaseRequest(queues=("default",))),
    "renew": lambda e: e.renew([]),
    "settle": lambda e: e.settle([]),
    "overdue": lambda e: e.overdue(10),
    "expired": lambda e: e.expired(10),
    "finished": lambda e: e.finished(10),
    "recount": lambda e: e.recount(10),
    "flow": lambda e: e.flow("default", limit=10),
    "waits": lambda e: e.waits("a"),
    "get": lambda e: e.get("a"),
    "find": lambda e: e.find(JobFilter(), limit=10),
    "tally": lambda e: e.tally(JobFilter(), "task", limit=10),
    "amend": lambda e: e.amend(JobFilter(), Cancel(), limit=10),
    "load": lambda e: e.load("schedule", limit=10),
    "save": lambda e: e.save(
        [Record(kind="distribution", key="x", value=b'{"source": "a.*", "target": "x"}')]
    ),
    "examine": lambda e: e.examine(),
}
ANY_SCOPE = {"queues", "waits", "get", "examine"}
ALLOWED: dict[str, set[str]] = {
    "produce": ANY_SCOPE | {"enqueue"},
    "consume": ANY_SCOPE | {"lease", "renew", "settle", "overdue", "expired", "flow"},
    "observe": ANY_SCOPE | {"flow", "find", "tally", "load"},
    "operate": set(VERBS) - {"drop"},
    "admin": set(VERBS),
    "run-commands": set(),
}


def test_every_verb_has_a_case() -> None:
    verbs = {name for name in vars(Engine) if not name.startswith("_")}
    assert set(VERBS) == verbs - {"traits", "open", "close"} | {"examine"}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("scope", ALLOWED)
async def test_each_verb_needs_its_scope(scope: str, verb: str) -> None:
    engine = await store()
    await engine.enqueue([job("a")])
    guarded = AuthorizedEngine(engine, caller(scope))
    if verb in ALLOWED[scope]:
        await VERBS[verb](guarded)
    else:
        with pytest.raises(Forbidden):
            await VERBS[verb](guarded)


@pytest.mark.parametrize("verb", VERBS)
async def test_an_anonymous_caller_may_do_nothing(verb: str) -> None:
    guarded = AuthorizedEngine(await store(), ANONYMOUS)
    with pytest.raises(Forbidden):
        await VERBS[verb](guarded)


async def test_an_observer_declares_and_saves_nothing() -> None:
    engine = await store()
    guarded = AuthorizedEngine(engine, caller("observe"))
    for instead_of in (None, ANY, Queue(name="new")):
        with pytest.raises(Forbidden):
            await guarded.declare(Queue(name="new"), instead_of=instead_of)
    for kind in SCOPES:
        with pytest.raises(Forbidden):
            await guarded.save([Record(kind=kind, key="x", value=b"{}")])
    assert await engine.queues(names=["new"]) == []


async def test_an_observer_reads_every_record_that_an_operator_reads() -> None:
    engine = await store()
    guarded = AuthorizedEngine(engine, caller("observe"))
    for kind in SCOPES:
        assert await guarded.load(kind, limit=10) == await engine.load(kind, limit=10)


async def test_closing_leaves_the_engine_open() -> None:
    engine = await store()
    guarded = AuthorizedEngine(engine, LOCAL_CALLER)
    await guarded.open()
    await guarded.close()
    assert await engine.queues()
    assert guarded.traits == engine.traits


async def test_a_consumer_declares_only_what_a_worker_needs() -> None:
    engine = await store()
    guarded = AuthorizedEngine(engine, caller("consume"))
    assert await guarded.declare(Queue(name="worker.w1"), instead_of=None)
    known = Queue(name="worker.w1")
    for queue, instead_of in (
        (Queue(name="new", paused=True), None),
        (Queue(name="new"), ANY),
        (replace(known, paused=True), known),
        (replace(known, max_depth=1), known),
    ):
        with pytest.raises(Forbidden, match="operate"):
            await guarded.declare(queue, instead_of=instead_of)


async def test_a_consumer_cancels_only_its_own_leases() -> None:
    engine = await store()
    await engine.enqueue([job("a")])
    guarded = AuthorizedEngine(engine, caller("consume"))
    lease = await leased(guarded, "a")
    for wanted, act in (
        (JobFilter(ids=("a",)), Cancel()),
        (JobFilter(version=2), Cancel()),
        (JobFilter(ids=("a",), version=2), Delete(force=True)),
    ):
        with pytest.raises(Forbidden):
            await guarded.amend(wanted, act, limit=1)
    held = JobFilter(ids=("a",), version=lease.job.version)
    assert await guarded.amend(held, Cancel(), limit=1) == 1


async def test_a_producer_sees_only_jobs_it_names() -> None:
    engine = await store()
    await engine.enqueue([job("a"), job("b")])
    guarded = AuthorizedEngine(engine, caller("produce"))
    page = await guarded.find(JobFilter(ids=("a",)), limit=10)
    assert [each.id for each in page.jobs] == ["a"]
    assert (await guarded.tally(JobFilter(ids=("a",)), "state", limit=5))[0].count == 1
    with pytest.raises(Forbidden):
        await guarded.find(JobFilter(queue="default"), limit=10)


@pytest.mark.parametrize("kind", ["token", "audit", "quota", "idempotency", "move", "partition"])
async def test_private_and_unknown_kinds_are_hidden(kind: str) -> None:
    engine = await store()
    await engine.save([Record(kind=kind, key="a", value=b"secret")])
    guarded = AuthorizedEngine(engine, caller("admin", "run-commands"))
    assert await guarded.load(kind, limit=10) == []
    for record in (
        Record(kind=kind, key="b", value=b"{}"),
        Record(kind=kind, key="a", value=None, version=1),
    ):
        with pytest.raises(Forbidden):
            await guarded.save([Record(kind="setting", key="lease", value=b"5s"), record])
    assert await engine.load("setting", limit=10) == []
    assert len(await engine.load(kind, limit=10)) == 1


async def test_a_worker_removes_old_orders_but_no_cordon() -> None:
    engine = await store()
    plain = Record(
        kind=workers.ORDER_KIND, key="w1", value=msgspec.json.encode(WorkerOrder(renew=3))
    )
    cordon = Record(
        kind=workers.ORDER_KIND, key="w2", value=msgspec.json.encode(WorkerOrder(cordoned=True))
    )
    await engine.save([plain, cordon])
    guarded = AuthorizedEngine(engine, caller("consume"))
    assert await guarded.save([replace(plain, value=None, version=1)]) == ["saved"]
    for record in (replace(cordon, value=None, version=1), replace(plain, key="w3")):
        with pytest.raises(Forbidden):
            await guarded.save([record])


class Untouched(MemoryEngine):
    """Remembers the batches it was given."""

    given: Any = None

    async def enqueue(self, jobs: Any) -> Any:
        self.given = jobs
        return await super().enqueue(jobs)

    async def settle(self, settlements: Any) -> Any:
        self.given = settlements
        return await super().settle(settlements)


async def test_unrestricted_callers_pass_batches_through() -> None:
    engine = Untouched()
    await engine.open()
    for who in (LOCAL_CALLER, caller("operate", "run-commands")):
        guarded = AuthorizedEngine(engine, who)
        jobs = [job(f"{who.name}{number}") for number in range(10)]
        receipts = await guarded.enqueue(jobs)
        assert engine.given is jobs
        assert len(receipts) == 10
        leases = await guarded.lease(LeaseRequest(queues=("default",), limit=10))
        settlements = [Settlement(lease=each, verdict=Complete()) for each in leases]
        await guarded.settle(settlements)
        given: Any = engine.given
        assert given is settlements


class Leaving(MemoryEngine):
    """Its second amend fails."""

    amends = 0

    async def amend(self, *given: Any, **more: Any) -> int:
        self.amends += 1
        if self.amends == 2:
            raise EngineUnavailable("away")
        return await super().amend(*given, **more)


async def test_a_partial_amend_is_outcome_unknown() -> None:
    engine = Leaving()
    await engine.open()
    await engine.enqueue([job("a"), job("b", task="u")])
    guarded = AuthorizedEngine(engine, LOCAL_CALLER)
    with pytest.raises(OutcomeUnknown, match="1 jobs were changed"):
        await guarded.amend(JobFilter(queue="default"), Edit(priority=5), limit=9)
    engine.amends = 1
    with pytest.raises(EngineUnavailable):
        await guarded.amend(JobFilter(queue="default"), Edit(priority=5), limit=9)


async def test_leases_of_a_cancelled_caller_are_released() -> None:
    engine = await store()
    await engine.enqueue([job("a")])
    asked = 0
    looking = asyncio.Event()

    async def alive() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            looking.set()
            await asyncio.Event().wait()

    guarded = AuthorizedEngine(engine, caller("consume"), AccessControls(require_token=alive))
    request = LeaseRequest(queues=("default",), wait_ms=1_000)
    leasing = asyncio.create_task(guarded.lease(request))
    await looking.wait()
    leasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leasing
    found = await engine.get("a")
    assert found is not None
    assert (found.state, found.attempt) == (State.WAITING, 0)
