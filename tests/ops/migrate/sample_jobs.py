"""Fill a store with jobs of every kind and state, through the engine's verbs only."""

from collections.abc import Callable, Sequence

from holdfast.core import transfer
from holdfast.core.backoff import Backoff
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import (
    Failure,
    FailureKind,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Note,
    Overrides,
    Queue,
    Reason,
    Renewal,
    Reroute,
    Status,
)
from holdfast.core.transfer import HeldKey, Mover, Whole
from holdfast.core.verdict import (
    Bury,
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Forward,
    Redrive,
    Release,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.base import Engine

HOSTILE = "a\u202eb \U0001f600 '; DROP TABLE jobs;-- \u0007%s{tenant}"
QUEUES = (
    Queue(name="dead"),
    Queue(name="plain", dead_queue="dead", max_depth=1000, order="keep"),
    Queue(name="ordered", group_batch=3, expires_ms=10**9),
    Queue(
        name="bound",
        limits=(
            Limit(name="each", key="{tenant}:{region}", concurrency=2),
            Limit(name="pace", rate=Rate(count=1, per_ms=60_000, burst=50)),
        ),
        fairness="shares",
        weights={"a": 3},
    ),
    Queue(name="aging", aging_ms=1000, backoff=Backoff(kind="constant")),
    Queue(name="shut", accepting=False, paused=True),
)


def mover_of(engine: Engine) -> Mover:
    mover: Mover = engine.mover()  # type: ignore[attr-defined]
    return mover


async def fill(engine: Engine, tick: Callable[[int], None] = lambda _ms: None) -> None:
    """`tick` lets a little time pass, so that no two jobs are due at the same instant."""
    tick(1)
    for queue in QUEUES:
        await engine.declare(queue)
    await _enqueue(engine, *_new_jobs())
    await _end(engine, "done", Complete(b'{"x": 1}'), Note(progress=0.5, output=b"said\xff\x00"))
    await _end(engine, "long", Complete(bytes(range(256)) * 20))
    failure = Failure(type="ValueError", message=HOSTILE, trace="Traceback\n" * 50)
    tick(1)
    await _end(engine, "tried", Retry(60_000, failure), Note(checkpoint=b"\x00" * 3000))
    tick(1)
    await _end(engine, "released", Release(text="not now", delay_ms=50_000, alone=True))
    tick(1)
    await _end(engine, "lost", Bury(Reason.REJECTED, failure))
    crash = Failure(kind=FailureKind.CRASH, signal=9, exit_code=-9)
    tick(1)
    await _end(engine, "crashed", Retry(0, crash))
    await _end(engine, "buried", Bury(Reason.CRASHED, crash))
    tick(1)
    await _end(engine, "forwarded", Forward("aging"))
    await _end(engine, "again", Bury(Reason.EXPLICIT, None))
    tick(1)
    await engine.amend(JobFilter(ids=("again",)), Redrive(by="me", text=HOSTILE), limit=1)
    await engine.amend(JobFilter(ids=("off",)), Cancel(by="me", text="no"), limit=1)
    await engine.amend(JobFilter(ids=("edited",)), Edit(by="me", payload=b"{}"), limit=1)
    await engine.amend(JobFilter(ids=("sooner",)), Expedite(by="me"), limit=1)
    tick(1)
    await _family(engine, tick)
    await _end(engine, "keyed-done", Complete(None))
    await engine.amend(JobFilter(ids=("keyed-gone",)), Delete(), limit=1)


def _new_jobs() -> list[NewJob]:
    names = (
        *("done", "long", "tried", "released", "lost", "buried", "forwarded", "again", "off"),
        *("edited", "sooner"),
    )
    plain = [NewJob(id=name, task="t", queue="default", payload=b"[1]") for name in names]
    hostile = NewJob(
        id="hostile", task="t/x:y", queue="aging", payload=b"\xff\x00" * 5000,
        content_type="application/x-thing", priority=-7, tenant=HOSTILE.replace("\u0007", ""),
        labels={"k": "\u2028v"}, headers={"h": HOSTILE.replace("\u0007", "")}, expires_ms=10**9,
        overrides=Overrides(max_attempts=9, lease_ms=5000, reroute=Reroute(most=2)),
    )  # fmt: skip
    grouped = [
        NewJob(id=f"g{n}", task="t", queue="ordered", group=f"g{n % 3}", priority=n)
        for n in range(12)
    ]
    laned = [
        NewJob(id=f"l{n}", task="t", queue="bound", tenant="ab"[n % 2], priority=n % 3,
               group="one" if n > 8 else None, labels={"region": "r"})
        for n in range(12)
    ]  # fmt: skip
    keyed = [
        NewJob(id=f"keyed-{n}", task="t", queue="plain", key=f"k\u00e9{n}", delay_ms=1000)
        for n in ("waits", "gone")
    ]
    keyed.append(NewJob(id="keyed-done", task="t", key="k", key_window_ms=10**8))
    return [
        *plain,
        NewJob(id="crashed", task="t", delay_ms=0, priority=1),
        NewJob(id="later", task="t", queue="plain", delay_ms=10**7, priority=5),
        hostile,
        *grouped,
        *laned,
        *keyed,
    ]


async def _family(engine: Engine, tick: Callable[[int], None]) -> None:
    await _enqueue(
        engine,
        *(NewJob(id=f"p{n}", task="t", queue="plain") for n in range(6)),
        NewJob(id="child", task="t", queue="bound", tenant="a", labels={"region": "x"},
               after=("p0", "p1")),
        NewJob(id="held", task="t", after=("p2", "p1"), parent_death="hold"),
        NewJob(id="orphan", task="t", after=("p2",)),
        NewJob(id="grandchild", task="t", after=("orphan", "child"), after_on="either"),
        NewJob(id="rerun", task="t", queue="plain", after=("p3",)),
        NewJob(id="forsaken", task="t", after=("p4",), parent_death="hold"),
        NewJob(id="mourner", task="t", after=("p5",), after_on="death"),
    )  # fmt: skip
    await _end(engine, "p0", Complete(b"1"))
    await _end(engine, "p2", Bury(Reason.REJECTED, None))
    await _end(engine, "p3", Complete(None))
    tick(1)
    # The dependency of its child is fulfilled, although the parent waits again.
    await engine.amend(JobFilter(ids=("p3",)), Redrive(by="me"), limit=1)
    await engine.amend(JobFilter(ids=("p4",)), Delete(), limit=1)


async def _enqueue(engine: Engine, *jobs: NewJob) -> None:
    receipts = await engine.enqueue(jobs)
    assert {receipt.status for receipt in receipts} == {Status.NEW}, receipts


async def _end(engine: Engine, id_: str, verdict: Verdict, note: Note | None = None) -> None:
    [lease] = await take(engine, id_)
    if note is not None:
        assert await engine.renew([Renewal(lease=lease, note=note)]) != [None]
    [outcome] = await engine.settle([Settlement(lease=lease, verdict=verdict)])
    assert outcome == "settled", (id_, outcome)


async def take(engine: Engine, *ids: str) -> list[Lease]:
    return await engine.lease(LeaseRequest(ids=ids, limit=len(ids), worker="w\u00f6rker"))


async def all_of(mover: Mover, limit: int = 7) -> list[Whole]:
    found: list[Whole] = []
    after: int | None = 0
    while after is not None:
        stretch = await mover.jobs(after=after, limit=limit, bytes_max=20_000)
        found += stretch.wholes
        after = stretch.after
    return found


async def keys_of(engine: Engine) -> list[HeldKey]:
    mover = mover_of(engine)
    names = [view.queue.name for view in await engine.queues(counts=False)]
    return [held for name in names for held in await mover.keys(name, after="", limit=100)]


def canonical(wholes: Sequence[Whole]) -> list[tuple[object, ...]]:
    return [(transfer.unnumbered(each.job), sorted(each.awaits)) for each in wholes]
