"""A call that needs a missing trait is Unsupported and reaches no engine, through every wrapper."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from holdfast.conformance.contract.cases import a_job, a_limit, a_queue, case, from_default
from holdfast.conformance.history import Journal, Recorded
from holdfast.core.model import (
    Job,
    JobFilter,
    Lease,
    Note,
    Overrides,
    Page,
    Receipt,
    Record,
    Renewal,
    Status,
)
from holdfast.core.verdict import (
    Cancel,
    Complete,
    Edit,
    Expedite,
    Outcome,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.base import Engine, Traits
from holdfast.engines.coalesced import Coalesced
from holdfast.engines.extras import Examinable, Transactional, extra, find_rows
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.partitioned import PartitionedEngine
from holdfast.engines.support import FULL, Support, has_gaps, lacks
from holdfast.engines.wrapper import Supported, enforced
from holdfast.errors import OutcomeUnknown, Unsupported, UsageError
from holdfast.server.access.authorized_engine import AuthorizedEngine
from holdfast.server.access.caller import Caller, Scope, with_implied
from holdfast.tracing.engine import TracedEngine
from tests.engines import harnesses
from tests.engines.doubles import GatedEngine
from tests.server.loop_server import LoopServer, ServedEngine

LEASE = Lease(job=Job(id="a", task="work", queue="default", token=16), token=16, lease_ms=1_000)
HOUR_MS = 3_600_000

Call = Callable[[Engine], Awaitable[Any]]


ALL = JobFilter()


class Check(NamedTuple):
    """One check: what the engine lacks, the verb and a call that needs it."""

    lacking: dict[str, Any]
    verb: str
    call: Call
    feature: str


def declares(feature: str, lacking: dict[str, Any], **settings: Any) -> Check:
    return Check(lacking, "declare", lambda engine: engine.declare(a_queue(**settings)), feature)


def enqueues(feature: str, lacking: dict[str, Any], **fields: Any) -> Check:
    return Check(lacking, "enqueue", lambda engine: engine.enqueue([a_job(**fields)]), feature)


def renews(feature: str, lacking: dict[str, Any], **fields: Any) -> Check:
    renewal = Renewal(lease=LEASE, **fields)
    return Check(lacking, "renew", lambda engine: engine.renew([renewal]), feature)


def settles(
    feature: str, lacking: dict[str, Any], verdict: Verdict, note: Note | None = None
) -> Check:
    settlement = Settlement(lease=LEASE, verdict=verdict, note=note)
    return Check(lacking, "settle", lambda engine: engine.settle([settlement]), feature)


def amends(feature: str, lacking: dict[str, Any], amendment: Any, wanted: JobFilter = ALL) -> Check:
    return Check(lacking, "amend", lambda engine: engine.amend(wanted, amendment, limit=1), feature)


UNSEARCHABLE = {"inspect": False}
NO_PARENTS = {"parent_filter": False}
CHILDREN = JobFilter(parent="p")
CHECKS = [
    declares("max_depth", {"limits": False}, max_depth=5),
    declares("limits", {"limits": False}, limits=(a_limit(concurrency=1),)),
    declares("rates", {"rates": False}, limits=(a_limit(rate="1/1000"),)),
    declares("fairness", {"fairness": False}, fairness="shares"),
    declares("weights of tenants", {"fairness": False}, weights={"t": 2}),
    declares("aging_ms", {"priority": False}, aging_ms=1_000),
    declares("group_batch", {"groups": False}, group_batch=2),
    declares('order "keep"', {"keep_order": False}, order="keep"),
    declares("expires", {"queue_expiry": False}, expires_ms=1_000),
    declares("a lease of 3600 s", {"lease_ms_max": 60_000}, lease_ms=HOUR_MS),
    enqueues("priorities", {"priority": False}, priority=1),
    enqueues("once-only keys", {"keys": False}, key="k"),
    enqueues('key_hold "window"', {"key_hold": False}, key="k", key_hold="window"),
    enqueues("strict groups", {"groups": False}, group="g"),
    enqueues("jobs after other jobs", {"dependencies": False}, after=("p",)),
    enqueues("a delay of 3600 s", {"delay_ms_max": 900_000}, delay_ms=HOUR_MS),
    enqueues("a lease of 3600 s", {"lease_ms_max": 60_000}, overrides=Overrides(lease_ms=HOUR_MS)),
    enqueues("a payload over 10 bytes", {"payload_max": 10}, payload=b"x" * 11),
    Check(
        UNSEARCHABLE,
        "lease",
        lambda engine: engine.lease(from_default(queues=(), ids=("a",))),
        "leasing by id",
    ),
    Check(
        {"dead_leases": False},
        "lease",
        lambda engine: engine.lease(from_default(dead=True)),
        "leasing dead letters",
    ),
    Check(
        {"lease_ms_max": 60_000},
        "lease",
        lambda engine: engine.lease(from_default(lease_ms=HOUR_MS)),
        "a lease of 3600 s",
    ),
    renews("renewal", {"renew": False}),
    renews("a lease of 3600 s", {"lease_ms_max": 60_000}, lease_ms=HOUR_MS),
    renews("progress, checkpoints and output", {"notes": False}, note=Note(progress=0.5)),
    settles("progress, checkpoints", {"notes": False}, Complete(), Note(checkpoint=b"1")),
    settles("results", {"results": False}, Complete(b"1")),
    settles("follow-up jobs", {"follow_ups": False}, Complete(then=(a_job("b"),))),
    settles("once-only keys", {"keys": False}, Complete(then=(a_job("b", key="k"),))),
    settles(
        'key_hold "window"',
        {"key_hold": False},
        Complete(then=(a_job("b", key="k", key_hold="window"),)),
    ),
    settles("a retry delay of 3600 s", {"retry_ms_max": 60_000}, Retry(HOUR_MS)),
    settles("a retry delay of 3600 s", {"retry_ms_max": 60_000}, Release(delay_ms=HOUR_MS)),
    Check(UNSEARCHABLE, "waits", lambda engine: engine.waits("a"), "what a job waits for"),
    Check(UNSEARCHABLE, "get", lambda engine: engine.get("a"), "reading a job by its id"),
    Check(UNSEARCHABLE, "find", lambda engine: engine.find(JobFilter(), limit=1), "searching"),
    Check(
        UNSEARCHABLE,
        "tally",
        lambda engine: engine.tally(JobFilter(), "state", limit=1),
        "counting jobs",
    ),
    amends("changing jobs without a lease", UNSEARCHABLE, Retime(delay_ms=0)),
    amends("jobs by their parent", NO_PARENTS, Cancel(), CHILDREN),
    Check(NO_PARENTS, "find", lambda engine: engine.find(CHILDREN, limit=1), "by their parent"),
    Check(
        NO_PARENTS,
        "tally",
        lambda engine: engine.tally(CHILDREN, "state", limit=1),
        "by their parent",
    ),
    amends("priorities", {"priority": False}, Edit(priority=1)),
    amends("priorities", {"priority": False}, Expedite()),
    amends("a payload over 10 bytes", {"payload_max": 10}, Edit(payload=b"x" * 11)),
    amends("a delay of 3600 s", {"delay_ms_max": 900_000}, Retime(delay_ms=HOUR_MS)),
    amends("a delay of 3600 s", {"delay_ms_max": 900_000}, Redrive(delay_ms=HOUR_MS)),
    Check({"records": False}, "load", lambda engine: engine.load("setting", limit=1), "records"),
    Check(
        {"records": False},
        "save",
        lambda engine: engine.save([Record(kind="setting", key="a", value=b"1")]),
        "records",
    ),
]
NO_RECORDS = {"records": False}


class Lacking(MemoryEngine):
    """A memory engine that says it lacks something, and records the verbs that reach it."""

    def __init__(self, lacking: dict[str, Any]) -> None:
        super().__init__()
        self.calls: list[str] = []
        self._said = replace(super().traits, **lacking)

    @property
    def traits(self) -> Traits:
        return self._said

    def __getattribute__(self, name: str) -> Any:
        if name in VERBS:
            self.calls.append(name)
        return super().__getattribute__(name)


VERBS = {check.verb for check in CHECKS}
ALL_GAPS: dict[str, Any] = {name: gap for check in CHECKS for name, gap in check.lacking.items()}
NEEDED_TO_ASK = {"inspect", "keys", "records", "renew", "follow_ups"}
"""Traits that a call can need besides the one it is about."""


def guarded(engine: Engine) -> Engine:
    scopes = with_implied((Scope.ADMIN, Scope.RUN_COMMANDS))
    return AuthorizedEngine(engine, Caller(name="tests", scopes=scopes, token="t"))


WRAPS: dict[str, harnesses.Wrap] = {
    "alone": enforced,
    "observed": harnesses.observed,
    "coalesced": Coalesced,
    "recorded": lambda engine: Recorded(engine, Journal("tests", lambda _: None)),
    "traced": TracedEngine,
    "authorized": guarded,
    "all at once": lambda engine: guarded(TracedEngine(Coalesced(harnesses.observed(engine)))),
    "partition": lambda engine: enforced(PartitionedEngine([("p", engine)])),
}


async def unsupported(engine: Engine, check: Check, names: str = "memory") -> None:
    """The call is refused with the engine, the feature and a remedy."""
    if check.verb == "enqueue":
        [receipt] = await check.call(engine)
        assert (receipt.status, receipt.code) == (Status.REFUSED, "unsupported")
        error = Unsupported.from_text(receipt.text)
    else:
        with pytest.raises(Unsupported) as caught:
            await check.call(engine)
        error = caught.value
    assert error.engine == names
    assert check.feature in error.feature
    assert error.remedy
    assert error.remedy in str(error)
    assert "engine table" not in str(error), "the remedy is about this feature"


@pytest.mark.parametrize("name", WRAPS)
async def test_each_check_through_each_wrapper(name: str) -> None:
    for check in CHECKS:
        if name == "partition" and check.lacking == NO_RECORDS:
            continue  # partitions keep their map in records, and cannot be opened without
        with case(check.verb, check.feature):
            inside = Lacking(check.lacking)
            engine = WRAPS[name](inside)
            await inside.open()
            await engine.open()
            inside.calls.clear()
            await unsupported(engine, check, "partitioned" if name == "partition" else "memory")
            assert check.verb not in inside.calls, "nothing reached the engine"
            await engine.close()


@pytest.fixture(scope="module")
async def loop_server() -> AsyncIterator[LoopServer]:
    server = LoopServer()
    async with server.running():
        yield server


async def test_each_check_through_a_server(loop_server: LoopServer) -> None:
    for check in CHECKS:
        with case(check.verb, check.feature):
            inside = Lacking(check.lacking)
            engine = ServedEngine(inside, loop_server=loop_server)
            await engine.open()
            inside.calls.clear()
            await unsupported(engine, check)
            assert check.verb not in inside.calls, "nothing reached the engine"
            await engine.close()


@pytest.mark.parametrize("name", WRAPS)
async def test_what_an_engine_has_is_not_refused(name: str) -> None:
    """On an engine that lacks everything that the call does not need."""
    for check in CHECKS:
        needed = NEEDED_TO_ASK | set(check.lacking)
        inside = Lacking({trait: gap for trait, gap in ALL_GAPS.items() if trait not in needed})
        engine = WRAPS[name](inside)
        await inside.open()
        await engine.open()
        inside.calls.clear()
        with case(check.verb, check.feature):
            answer = await check.call(engine)
            assert not isinstance(answer, list) or not any(
                isinstance(each, Receipt) and each.code == "unsupported" for each in answer
            )
            assert check.verb in inside.calls
        await engine.close()


async def test_a_plain_call_needs_no_trait() -> None:
    """On an engine that lacks everything. Its bounds themselves are allowed."""
    engine = enforced(Lacking(ALL_GAPS))
    await engine.open()
    assert await engine.declare(a_queue(lease_ms=60_000, group_batch=1))
    at_bounds = Overrides(lease_ms=60_000)
    receipts = await engine.enqueue(
        [a_job("a", payload=b"x" * 10, overrides=at_bounds), a_job("b", delay_ms=900_000)]
    )
    receipts += await engine.enqueue([a_job("c", key_hold="window")])
    assert [receipt.status for receipt in receipts] == [Status.NEW] * 3
    for verdict in (Retry(0), Release(delay_ms=0), Complete(), Retry(60_000)):
        [lease] = await engine.lease(from_default(lease_ms=60_000))
        assert await engine.settle([Settlement(lease=lease, verdict=verdict)]) == [Outcome.SETTLED]
    assert await engine.lease(from_default()) == []


async def test_the_bounds_of_an_engine_are_allowed() -> None:
    bounds = {name: gap for name, gap in ALL_GAPS.items() if name.endswith("_max")}
    engine = enforced(Lacking(bounds))
    await engine.open()
    await engine.enqueue([a_job()])
    [lease] = await engine.lease(from_default())
    assert await engine.renew([Renewal(lease=lease, lease_ms=60_000)]) != [None]
    for amendment in (Retime(delay_ms=900_000), Edit(payload=b"x" * 10), Edit(text="only")):
        await engine.amend(JobFilter(), amendment, limit=1)


INVALID: dict[str, Call] = {
    "declare": lambda engine: engine.declare(a_queue(max_depth=0)),
    "lease": lambda engine: engine.lease(from_default(0, queues=(), ids=("a",))),
    "renew": lambda engine: engine.renew([Renewal(lease=LEASE, lease_ms=-1)]),
    "amend": lambda engine: engine.amend(JobFilter(), Retime(delay_ms=-1), limit=1),
}


@pytest.mark.parametrize("verb", INVALID)
async def test_an_invalid_call_is_invalid_on_every_engine(verb: str) -> None:
    """Even if it also needs a trait that the engine lacks."""
    engine = enforced(Lacking(ALL_GAPS))
    await engine.open()
    with pytest.raises(UsageError) as caught:
        await INVALID[verb](engine)
    assert not isinstance(caught.value, Unsupported)


async def test_an_invalid_verdict_is_refused_by_the_engine() -> None:
    engine = enforced(Lacking({"notes": False}))
    await engine.open()
    await engine.enqueue([a_job()])
    [lease] = await engine.lease(from_default())
    invalid = Settlement(lease=lease, verdict=Retry(-1), note=Note(progress=0.5))
    assert await engine.settle([invalid]) == [Outcome.REFUSED]


async def test_known_receipts_keep_their_places_beside_an_unsupported_job() -> None:
    """If the outcome of the supported ones is unknown, the refusal is known."""
    inside = GatedEngine()
    receipt = Receipt(id="c", status=Status.NEW)
    inside.errors.append(OutcomeUnknown("cut off", known={1: receipt}))
    engine = Supported(inside)
    engine._support = Support(replace(FULL, keys=False))
    await engine.open()
    with pytest.raises(OutcomeUnknown) as caught:
        await engine.enqueue([a_job("a"), a_job("b", key="k"), a_job("c")])
    assert sorted(caught.value.known) == [1, 2]
    assert caught.value.known[1].code == "unsupported"
    assert caught.value.known[2] is receipt


async def test_a_batch_of_unsupported_jobs_does_not_reach_the_engine() -> None:
    inside = Lacking({"keys": False})
    engine = enforced(inside)
    await engine.open()
    inside.calls.clear()
    receipts = await engine.enqueue([a_job("a", key="k"), a_job("b", key="l")])
    assert [receipt.code for receipt in receipts] == ["unsupported"] * 2
    assert inside.calls == []


class LackingRows(Lacking):
    """It records the lists without payloads that reach it."""

    def __init__(self, lacking: dict[str, Any]) -> None:
        super().__init__(lacking)
        self.listed: list[JobFilter] = []

    async def find_rows(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        self.listed.append(wanted)
        return await super().find_rows(wanted, limit=limit, after=after)


@pytest.mark.parametrize("name", WRAPS)
async def test_lists_without_payloads_are_checked(name: str) -> None:
    for lacking, wanted, feature in (
        (UNSEARCHABLE, ALL, "searching jobs"),
        (NO_PARENTS, CHILDREN, "selecting jobs by their parent"),
    ):
        inside = LackingRows(lacking)
        engine = WRAPS[name](inside)
        await inside.open()
        await engine.open()
        with pytest.raises(Unsupported, match=feature):
            await find_rows(engine, wanted, limit=1)
        assert inside.listed == []
        if lacking == NO_PARENTS:
            await find_rows(engine, ALL, limit=1)
            assert inside.listed == [ALL]
        await engine.close()


def test_other_extras_are_those_of_the_engine() -> None:
    inside = LackingTransactions()
    assert extra(enforced(inside), Examinable) is inside


async def test_partitions_are_checked_themselves() -> None:
    """Also in a composition that nothing else checks."""
    inside = Lacking({"keys": False})
    engine = PartitionedEngine([("p", inside)])
    await engine.open()
    inside.calls.clear()
    [receipt] = await engine.enqueue([a_job(key="k")])
    assert receipt.code == "unsupported"
    assert inside.calls == []
    await engine.close()


async def test_strict_groups_of_fifo_queues_only() -> None:
    engine = enforced(Lacking({"groups": False, "fifo_groups": True}))
    await engine.open()
    assert await engine.declare(a_queue("mail.fifo", group_batch=2))
    with pytest.raises(Unsupported, match="group_batch"):
        await engine.declare(a_queue("mail", group_batch=2))
    await engine.declare(a_queue("mail"))
    jobs = [a_job("a", queue="mail.fifo", group="g"), a_job("b", queue="mail", group="g")]
    receipts = await engine.enqueue(jobs)
    assert [receipt.status for receipt in receipts] == [Status.NEW, Status.REFUSED]
    assert "whose name ends in .fifo" in receipts[1].text


class LackingTransactions(Lacking):
    """Its transactions record the calls that reach them."""

    def __init__(self) -> None:
        super().__init__({"keys": False, "results": False})
        self.written: list[Any] = []

    def within(self, connection: Any) -> LackingTransactions:
        self.written.append(connection)
        return self

    def enqueue(self, jobs: Any) -> Any:
        self.written.append(jobs)

    def settle(self, settlements: Any) -> Any:
        self.written.append(settlements)


@pytest.mark.parametrize("name", ["alone", "observed", "coalesced", "recorded", "traced"])
def test_calls_inside_a_transaction_are_checked(name: str) -> None:
    inside = LackingTransactions()
    transactional = extra(WRAPS[name](inside), Transactional)
    assert transactional is not None
    transaction = transactional.within("connection")
    with pytest.raises(Unsupported, match="once-only keys"):
        transaction.enqueue([a_job("a"), a_job("b", key="k")])
    with pytest.raises(Unsupported, match="results"):
        transaction.settle([Settlement(lease=LEASE, verdict=Complete(b"1"))])
    assert inside.written == ["connection"]
    done = [Settlement(lease=LEASE, verdict=Complete())]
    transaction.enqueue([a_job()])
    transaction.settle(done)
    assert inside.written == ["connection", [a_job()], done]


async def test_an_unsupported_job_harms_no_neighbour() -> None:
    engine = enforced(Lacking({"keys": False}))
    await engine.open()
    receipts = await engine.enqueue([a_job("a"), a_job("b", key="k"), a_job("c")])
    assert [receipt.id for receipt in receipts] == ["a", "b", "c"]
    assert [receipt.status for receipt in receipts] == [Status.NEW, Status.REFUSED, Status.NEW]
    page = await engine.find(JobFilter(), limit=9)
    assert [job.id for job in page.jobs] == ["c", "a"]


async def test_one_unsupported_verdict_leaves_the_whole_batch_unsettled() -> None:
    engine = enforced(Lacking({"results": False}))
    await engine.open()
    await engine.enqueue([a_job("a"), a_job("b")])
    leases = await engine.lease(from_default(2))
    verdicts = [Settlement(lease=leases[0], verdict=Complete())]
    verdicts += [Settlement(lease=leases[1], verdict=Complete(b"1"))]
    with pytest.raises(Unsupported, match="results"):
        await engine.settle(verdicts)
    assert len((await engine.find(JobFilter(), limit=9)).jobs) == 2
    assert [view.leased for view in await engine.queues()] == [2]


async def test_an_invalid_value_is_invalid_on_every_engine() -> None:
    engine = enforced(Lacking({"priority": False}))
    await engine.open()
    [receipt] = await engine.enqueue([a_job(priority=1_000)])
    assert receipt.code == "invalid_job"


def test_a_full_engine_is_not_wrapped() -> None:
    full = MemoryEngine()
    assert not has_gaps(full.traits)
    assert enforced(full) is full
    inside = Supported(Lacking({"keys": False}))
    assert enforced(inside) is inside


@pytest.mark.parametrize("name", sorted({name for check in CHECKS for name in check.lacking}))
def test_every_checked_trait_makes_a_gap(name: str) -> None:
    [lacking] = {str(c.lacking): c.lacking for c in CHECKS if list(c.lacking) == [name]}.values()
    traits = replace(FULL, **lacking)
    assert lacks(traits, name)
    assert has_gaps(traits)
