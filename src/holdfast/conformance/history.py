"""Recorded histories: an engine that records its calls, the journal it writes, and its lines.

`Recorded` changes nothing and does not record calls that only read. A journal is one file per
process with one appending write per line: lines written before a kill -9 survive, and a torn last
line is skipped when reading.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, assert_never

import msgspec

from holdfast.core import bounds
from holdfast.core.model import (
    Job,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Queue,
    Receipt,
    Renewal,
)
from holdfast.core.verdict import (
    Amendment,
    Bury,
    BuryWaiting,
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Forward,
    Move,
    Outcome,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.base import ANY, Engine, Expired, Known, Overdue
from holdfast.engines.wrapper import Wrapper
from holdfast.errors import EngineUnavailable, UsageError

Phase = Literal["inv", "ok", "fail", "info", "note"]
NOTHING_HAPPENED = (UsageError, EngineUnavailable)
"""Only these errors prove that a call had no effect; any other leaves it unknown."""
T = TypeVar("T")


class Recorded(Wrapper):
    """An engine that records the calls of another engine, with their answers, in a journal."""

    def __init__(self, engine: Engine, journal: Journal) -> None:
        super().__init__(engine)
        self._journal = journal

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        return await self._recorded(
            "declare", queue, self._engine.declare(queue, instead_of=instead_of)
        )

    async def drop(self, name: str) -> None:
        await self._recorded("drop", name, self._engine.drop(name))

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self._recorded("enqueue", jobs, self._engine.enqueue(jobs))

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        return await self._recorded("lease", request, self._engine.lease(request))

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        return await self._recorded("renew", renewals, self._engine.renew(renewals))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        return await self._recorded("settle", settlements, self._engine.settle(settlements))

    async def overdue(self, limit: int) -> Overdue:
        return await self._recorded("overdue", limit, self._engine.overdue(limit))

    async def expired(self, limit: int) -> Expired:
        return await self._recorded("expired", limit, self._engine.expired(limit))

    async def recount(self, limit: int) -> int:
        return await self._recorded("recount", limit, self._engine.recount(limit))

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        call = self._engine.amend(wanted, amendment, limit=limit)
        return await self._recorded("amend", wanted, call, amendment)

    async def _recorded(
        self, op: str, argument: object, call: Awaitable[T], amendment: Amendment | None = None
    ) -> T:
        number = self._journal.begin(op, argument, amendment)
        try:
            answer = await call
        except BaseException as error:
            self._journal.end(number, op, argument, error)
            raise
        self._journal.end(number, op, argument, answer)
        return answer


async def dump(engine: Engine, journal: Journal) -> int:
    """Record every stored job and the store's own counts; returns the number of jobs."""
    after: int | None = None
    total = 0
    while True:
        page = await engine.find(JobFilter(), limit=bounds.PAGE_MAX, after=after)
        for job in page.jobs:
            journal.note_job("dump", stored(job))
        total += len(page.jobs)
        after = page.after
        if after is None:
            break
    for view in await engine.queues():
        journal.note(
            "counts",
            queue=view.queue.name,
            waiting=view.ready + view.delayed + view.blocked,
            leased=view.leased,
            done=view.done,
            dead=view.dead,
            cancelled=view.cancelled,
            exact=not view.estimated,
        )
        for slot in (await engine.flow(view.queue.name, limit=bounds.PAGE_MAX)).slots:
            journal.note("slot", limit=slot.limit, key=slot.key, used=slot.used)
    journal.note("dumped", jobs=total)
    return total


class Journal:
    """Writes the lines of one process. `instant_ns` must be comparable across the processes of a
    run."""

    def __init__(
        self,
        process: str,
        write: Callable[[HistoryLine], None],
        instant_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.process = process
        self._write = write
        self._instant_ns = instant_ns
        self._calls = itertools.count(1)

    def begin(self, op: str, argument: Any, amendment: Amendment | None = None) -> int:
        """Write the `inv` line; the number links the second line to it."""
        call = next(self._calls)
        self._line("inv", op, call, asked(op, argument, amendment))
        return call

    def end(self, call: int, op: str, argument: Any, answer: Any) -> None:
        """Write the second line; `answer` may be the exception that was raised."""
        if isinstance(answer, BaseException):
            phase: Phase = "fail" if isinstance(answer, NOTHING_HAPPENED) else "info"
            self._line(phase, op, call, {"error": f"{type(answer).__name__}: {answer}"[:300]})
        else:
            self._line("ok", op, call, answered(op, argument, answer))

    def note(self, op: str, **facts: Any) -> None:
        self._line("note", op, 0, {"facts": facts})

    def note_job(self, op: str, entry: Entry) -> None:
        self._line("note", op, 0, {"jobs": (entry,)})

    def _line(self, phase: Phase, op: str, call: int, fields: dict[str, Any]) -> None:
        line = HistoryLine(
            process=self.process,
            at_ns=self._instant_ns(),
            phase=phase,
            op=op,
            call=call,
            **fields,
        )
        self._write(line)


def to_file(path: Path) -> Callable[[HistoryLine], None]:
    """A writer for `Journal`. The file stays open as long as the writer lives."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    encoder = msgspec.json.Encoder()

    def write(line: HistoryLine) -> None:
        data = encoder.encode(line) + b"\n"
        written = os.write(descriptor, data)
        assert written == len(data), f"{path} took {written} of {len(data)} bytes: disk full?"

    return write


def read_journals(directory: Path) -> list[HistoryLine]:
    """Every line of every `*.jsonl` file in a folder, by time."""
    decoder = msgspec.json.Decoder(HistoryLine)
    lines = []
    for path in sorted(directory.glob("*.jsonl")):
        for text in path.read_bytes().splitlines(keepends=True):
            if text.endswith(b"\n"):
                lines.append(decoder.decode(text))
    lines.sort(key=lambda line: line.at_ns)
    return lines


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job in a line: as requested, as answered, or as stored.

    `answer` is new, duplicate, refused, settled, lost or renewed. `verdict` names a verdict or an
    amendment. `digest` is a hash of the payload, `tick` a schedule and its firing.
    """

    id: str
    queue: str = ""
    answer: str = ""
    verdict: str = ""
    token: int | None = None
    attempt: int | None = None
    lease_ms: int | None = None
    leased_at: int | None = None
    due_at: int | None = None
    expires_at: int | None = None
    created_at: int | None = None
    delay_ms: int | None = None
    expires_ms: int | None = None
    priority: int | None = None
    max_attempts: int | None = None
    digest: str = ""
    key: str | None = None
    key_window_ms: int | None = None
    key_policy: str = ""
    key_hold: str = ""
    tick: str = ""
    reason: str = ""
    failure: str = ""
    target: str = ""
    state: str = ""
    cancel_requested: bool = False
    task: str = ""
    tenant: str | None = None
    group: str | None = None
    after: tuple[str, ...] = ()
    after_on: str = ""
    parent_death: str = ""
    then: tuple[Entry, ...] = ()
    dead: bool = False
    """The lease is that of a dead letter."""


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a history. `inv` is written before a call; afterwards `ok`, `fail` (it certainly
    had no effect) or `info` (unknown). A call without a second line counts as `info`. `note`
    records a fact about the run."""

    process: str
    at_ns: int
    phase: Phase
    op: str
    call: int = 0
    jobs: tuple[Entry, ...] = ()
    queues: tuple[str, ...] = ()
    selective: bool = False
    count: int | None = None
    error: str = ""
    facts: dict[str, Any] = {}


def asked(op: str, argument: Any, amendment: Amendment | None = None) -> dict[str, Any]:
    """The fields of the `inv` line of a call."""
    match op:
        case "enqueue":
            return {"jobs": tuple(_new(job) for job in argument)}
        case "lease":
            request: LeaseRequest = argument
            selective = bool(request.ids) or request.tasks is not None or request.dead
            return {"queues": request.queues, "selective": selective}
        case "renew":
            return {"jobs": tuple(_renewal(renewal) for renewal in argument)}
        case "settle":
            return {"jobs": tuple(_settlement(settlement) for settlement in argument)}
        case "amend":
            assert amendment is not None
            wanted: JobFilter = argument
            return {
                "jobs": tuple(_amendment(id_, amendment) for id_ in wanted.ids or ()),
                "selective": wanted.ids is None,
            }
        case "declare":
            return {"facts": msgspec.to_builtins(argument)}
        case "drop":
            return {"queues": (argument,)}
        case _:
            return {}


def answered(op: str, argument: Any, answer: Any) -> dict[str, Any]:
    """The fields of the `ok` line of a call."""
    match op:
        case "enqueue":
            receipts: Sequence[Receipt] = answer
            entries = tuple(Entry(id=r.id, answer=r.status, reason=r.code) for r in receipts)
            return {"jobs": entries}
        case "lease":
            return {"jobs": tuple(_granted(lease) for lease in answer)}
        case "renew":
            return {
                "jobs": tuple(
                    Entry(id=renewal.lease.id, answer="lost" if lease is None else "renewed")
                    for renewal, lease in zip(argument, answer, strict=True)
                )
            }
        case "settle":
            outcomes: Sequence[Outcome] = answer
            return {
                "jobs": tuple(
                    Entry(id=settlement.lease.id, answer=outcome)
                    for settlement, outcome in zip(argument, outcomes, strict=True)
                )
            }
        case "overdue":
            return {"jobs": tuple(_granted(lease) for lease in answer.leases)}
        case "expired":
            return {"jobs": tuple(stored(job) for job in answer.jobs)}
        case "amend" | "declare" | "recount":
            return {"count": int(answer)}
        case _:
            return {}


def stored(job: Job) -> Entry:
    """A job as stored."""
    return Entry(
        id=job.id,
        queue=job.queue,
        state=job.state,
        token=job.token,
        attempt=job.attempt,
        leased_at=job.leased_at,
        due_at=job.due_at,
        expires_at=job.expires_at,
        created_at=job.created_at,
        priority=job.priority,
        digest=digest(job.payload),
        key=job.key,
        reason=job.reason or "",
        cancel_requested=job.cancel_requested,
    )


def digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()[:16]


def _new(job: NewJob) -> Entry:
    return Entry(
        id=job.id,
        queue=job.queue,
        delay_ms=job.delay_ms,
        expires_ms=job.expires_ms,
        priority=job.priority,
        max_attempts=job.overrides.max_attempts,
        digest=digest(job.payload),
        key=job.key,
        key_window_ms=None if job.key is None else job.key_window_ms,
        key_policy="" if job.key is None else job.key_policy,
        key_hold="" if job.key is None else job.key_hold,
        tick=_tick(job),
        tenant=job.tenant,
        group=job.group,
        after=job.after,
        after_on=job.after_on if job.after else "",
        parent_death=job.parent_death if job.after else "",
    )


def _tick(job: NewJob) -> str:
    """The schedule and firing of a job, from the headers that a scheduler sets."""
    schedule, tick = job.headers.get("schedule"), job.headers.get("tick")
    return "" if schedule is None or tick is None else f"{schedule}/{tick}"


def _granted(lease: Lease) -> Entry:
    job = lease.job
    return Entry(
        id=job.id,
        queue=job.queue,
        token=lease.token,
        attempt=job.attempt,
        lease_ms=lease.lease_ms,
        leased_at=job.leased_at,
        due_at=job.due_at,
        expires_at=job.expires_at,
        priority=job.priority,
        digest=digest(job.payload),
        cancel_requested=job.cancel_requested,
        task=job.task,
        tenant=job.tenant,
        group=job.group,
        dead=job.is_dead_letter,
    )


def _renewal(renewal: Renewal) -> Entry:
    lease = renewal.lease
    lease_ms = lease.lease_ms if renewal.lease_ms is None else renewal.lease_ms
    return Entry(
        id=lease.id,
        token=lease.token,
        attempt=lease.job.attempt,
        lease_ms=lease_ms,
        dead=lease.job.is_dead_letter,
    )


def _settlement(settlement: Settlement) -> Entry:
    lease, verdict = settlement.lease, settlement.verdict
    return Entry(
        id=lease.id,
        queue=lease.job.queue,
        token=lease.token,
        attempt=lease.job.attempt,
        cancel_requested=lease.job.cancel_requested,
        dead=lease.job.is_dead_letter,
        **_verdict(verdict),
    )


def _verdict(verdict: Verdict) -> dict[str, Any]:
    match verdict:
        case Complete(then=then):
            return {"verdict": "complete", "then": tuple(_new(job) for job in then)}
        case Retry(delay_ms=delay_ms, failure=failure):
            kind = "" if failure is None else failure.kind
            return {"verdict": "retry", "delay_ms": delay_ms, "failure": kind}
        case Bury(reason=reason, failure=failure):
            kind = "" if failure is None else failure.kind
            return {"verdict": "bury", "reason": reason, "failure": kind}
        case Release(delay_ms=delay_ms):
            return {"verdict": "release", "delay_ms": delay_ms}
        case Forward(queue=queue):
            return {"verdict": "forward", "target": queue}
        case never:
            assert_never(never)


def _amendment(id_: str, amendment: Amendment) -> Entry:
    match amendment:
        case Cancel():
            return Entry(id=id_, verdict="cancel")
        case Redrive(delay_ms=delay_ms):
            return Entry(id=id_, verdict="redrive", delay_ms=delay_ms)
        case BuryWaiting(reason=reason):
            return Entry(id=id_, verdict="bury", reason=reason)
        case Edit(payload=payload, expires_ms=expires_ms, priority=priority):
            new = "" if payload is None else digest(payload)
            return Entry(
                id=id_, verdict="edit", digest=new, expires_ms=expires_ms, priority=priority
            )
        case Move(queue=queue):
            return Entry(id=id_, verdict="move", target=queue)
        case Retime(delay_ms=delay_ms):
            return Entry(id=id_, verdict="retime", delay_ms=delay_ms)
        case Expedite():
            return Entry(id=id_, verdict="expedite")
        case Delete():
            return Entry(id=id_, verdict="delete")
        case never:
            assert_never(never)
