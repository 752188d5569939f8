"""Settle leases over REST: turns the verdicts that clients send into settlements for the engine.

`core.retry_policy` decides between another attempt and a dead letter; this module never does.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated, Literal, assert_never

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core import bounds, checks, failures, retry_policy
from holdfast.core.model import Failure, FailureKind, Job, Lease, Note, Queue, Reason
from holdfast.core.verdict import Bury, Complete, Forward, Outcome, Release, Settlement, Verdict
from holdfast.engines.base import Engine
from holdfast.errors import Forbidden, InvalidJob, UnknownQueue, UsageError
from holdfast.notation import job_lines
from holdfast.notation.durations import to_ms
from holdfast.notation.job import JobId, Json, QueueName, Seconds
from holdfast.ops.queues import queue_settings
from holdfast.server.access.admission import ApiCall
from holdfast.server.access.caller import Caller, Scope
from holdfast.server.access.permissions import command_refusal, runs_commands
from holdfast.server.http.operation import Operation, operation
from holdfast.server.rest.enqueue import EntryError, JobBuilder, check_batch_size, job_builder
from holdfast.server.rest.leases import LeaseKey, lease_cache, read_leases
from holdfast.server.rest.shapes import AnyJobBody, IgnoredNote, Token

RequestedVerdict = Literal["complete", "failed", "retry", "bury", "release", "forward"]
AppliedVerdict = Literal["complete", "retry", "bury", "release", "forward"]

_BY_POLICY: tuple[RequestedVerdict, ...] = ("failed", "retry")
"""For these, the policy of the job and the queue decides which verdict is applied."""

_OPTIONS_OF: dict[RequestedVerdict, tuple[str, ...]] = {
    "complete": ("result", "then"),
    "failed": ("error",),
    "retry": ("error", "delay"),
    "bury": ("error",),
    "release": ("error", "delay"),
    "forward": ("queue",),
}
_OPTIONS = ("result", "then", "error", "delay", "queue")
_MANY = Meta(min_length=1, max_length=bounds.BATCH_MAX)


class FailureBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An error. `crash` means that the process running the job died; crashes are counted.
    Only the head and the tail of a long text are stored."""

    message: str = ""
    type: str = ""
    trace: str = ""
    kind: Literal["error", "timeout", "crash"] = "error"
    exit_code: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    signal: Annotated[int, Meta(ge=0, le=255)] | None = None


class VerdictBody(msgspec.Struct, forbid_unknown_fields=True):
    """The end of one lease. `complete` takes a `result` and follow-up jobs in `then`, enqueued
    in the same transaction. `failed` takes an `error`; the policy of job and queue decides
    between another attempt and a dead letter. `retry` requests another attempt after `delay` or the
    backoff; if none is left, the job becomes a dead letter. `bury` makes it a dead letter.
    `release` refunds the attempt: the job is not at fault. `forward` moves the job to another
    `queue`. `output` is the text that the job printed, of which the head and the tail are
    stored."""

    id: JobId
    token: Token
    verdict: RequestedVerdict
    result: Json | UnsetType = UNSET
    error: str | FailureBody | None = None
    delay: Seconds | None = None
    then: Annotated[list[AnyJobBody], Meta(max_length=bounds.FOLLOW_UPS_MAX)] | None = None
    queue: QueueName | None = None
    output: str | None = None


class SettleBody(msgspec.Struct, forbid_unknown_fields=True):
    """The leases to end, each with its verdict."""

    verdicts: Annotated[list[VerdictBody], _MANY]


class SettleResult(msgspec.Struct, frozen=True, kw_only=True):
    """`settled` is also the answer to a repeated request. `lost`: the token is no longer valid, and
    nothing changed. `refused`: the verdict is out of bounds, names a queue that does not exist, or
    has a follow-up job that is not accepted; the lease stays valid. `verdict` is what was applied.
    """

    id: str
    outcome: Outcome
    verdict: AppliedVerdict | UnsetType = UNSET
    error: EntryError | UnsetType = UNSET


class SettleResults(msgspec.Struct, frozen=True):
    """One outcome for each verdict, in the same order."""

    outcomes: list[SettleResult]
    note: IgnoredNote = UNSET


@operation("POST", "/v1/settle", needs=Scope.CONSUME, repeatable=True)
async def settle(call: ApiCall, body: SettleBody) -> SettleResults:
    """Settle leases. Each verdict has its own outcome, and repeating one is harmless."""
    verdicts, cache = body.verdicts, lease_cache(call)
    leases = await cache.get_or_read(call.engine, ((each.id, each.token) for each in verdicts))
    check_batch_size([job for each in verdicts for job in each.then or ()])
    by_policy = any(each.verdict in _BY_POLICY for each in verdicts)
    names = {held.job.queue for held in leases.values()}
    queues = await queue_settings(call.engine, names) if by_policy else {}
    if by_policy:
        leases |= await _reread_last_attempts(call.engine, verdicts, leases, queues)
    builder = await job_builder(call.app)
    results: list[SettleResult | None] = []
    valid: list[Settlement] = []
    for each in verdicts:
        held = leases[each.id, each.token]
        try:
            valid.append(_settlement(each, held, queues.get(held.job.queue), builder))
            results.append(None)
        except UsageError as error:
            results.append(_refused(each.id, error))
    outcomes = await call.engine.settle(valid) if valid else []
    for settlement, outcome in zip(valid, outcomes, strict=True):
        if outcome is not Outcome.REFUSED:
            cache.remove((settlement.lease.id, settlement.lease.token))
    known = await queue_settings(call.engine) if Outcome.REFUSED in outcomes else {}
    from_engine = iter(
        [
            _refused(settlement.lease.id, _why_refused(settlement, known, call.caller))
            if outcome is Outcome.REFUSED
            else _settled(settlement, outcome)
            for settlement, outcome in zip(valid, outcomes, strict=True)
        ]
    )
    return SettleResults([each or next(from_engine) for each in results], builder.note)


OPERATIONS: tuple[Operation, ...] = (settle,)


async def _reread_last_attempts(
    engine: Engine,
    verdicts: list[VerdictBody],
    leases: dict[LeaseKey, Lease],
    queues: dict[str, Queue],
) -> dict[LeaseKey, Lease]:
    """Read again the jobs that policy would bury: the cache misses a cancel request made since, and
    such a job is cancelled instead.
    """
    last = []
    for each in verdicts:
        key = (each.id, each.token)
        if _is_last_attempt(each, leases[key], queues.get(leases[key].job.queue)):
            last.append(key)
    return await read_leases(engine, last) if last else {}


def _is_last_attempt(body: VerdictBody, lease: Lease, queue: Queue | None) -> bool:
    """True if policy would bury the job as it was leased."""
    if body.verdict not in _BY_POLICY:
        return False
    settings = queue or Queue(name=lease.job.queue)
    # The delay before another attempt does not affect whether there is one.
    verdict = retry_policy.after_retry_request(settings, lease.job, _failure(body.error), None, 0.0)
    return isinstance(verdict, Bury)


def _settlement(
    body: VerdictBody, lease: Lease, queue: Queue | None, builder: JobBuilder
) -> Settlement:
    """The settlement for a verdict. UsageError if the verdict is not valid."""
    for name in _OPTIONS:
        if getattr(body, name) not in (None, UNSET) and name not in _OPTIONS_OF[body.verdict]:
            raise UsageError(f'the verdict "{body.verdict}" takes no {name}')
    note = None if body.output is None else Note(output=body.output.encode())
    verdict = _verdict(body, lease.job, queue or Queue(name=lease.job.queue), builder)
    if note is not None and note.output is not None:
        verdict = failures.with_output(verdict, note.output)
    settlement = Settlement(lease=lease, verdict=verdict, note=note)
    checks.check_settlement(settlement)
    return settlement


def _verdict(body: VerdictBody, job: Job, queue: Queue, builder: JobBuilder) -> Verdict:
    delay_ms = None if body.delay is None else to_ms("delay", body.delay, UsageError)
    failure = _failure(body.error)
    match body.verdict:
        case "complete":
            then = tuple(builder.job(each) for each in body.then or ())
            return Complete(_result(body.result), then)
        case "failed":
            failed = failure or Failure(message="the worker gave no error message")
            return retry_policy.after_failure(queue, job, failed, random.random())
        case "retry":
            return retry_policy.after_retry_request(queue, job, failure, delay_ms, random.random())
        case "bury":
            return Bury(Reason.EXPLICIT, failure)
        case "release":
            return Release("" if failure is None else failure.message, delay_ms or 0)
        case "forward":
            if body.queue is None:
                raise UsageError('the verdict "forward" needs the queue to forward to')
            return Forward(body.queue)
        case never:
            assert_never(never)


def _result(result: msgspec.Raw | UnsetType) -> bytes | None:
    raw = job_lines.json_bytes(result, "result")
    return None if raw == b"null" else raw


def _failure(error: str | FailureBody | None) -> Failure | None:
    if error is None:
        return None
    if isinstance(error, str):
        return Failure(message=error)
    return Failure(
        kind=FailureKind(error.kind),
        type=error.type,
        message=error.message,
        trace=error.trace,
        exit_code=error.exit_code,
        signal=error.signal,
    )


def _why_refused(settlement: Settlement, queues: Mapping[str, Queue], caller: Caller) -> UsageError:
    """Why the engine refused a verdict that is within its bounds. `queues` are those that the
    caller can see."""
    id_, verdict = settlement.lease.id, settlement.verdict
    then = verdict.then if isinstance(verdict, Complete) else ()
    named = [verdict.queue] if isinstance(verdict, Forward) else [job.queue for job in then]
    for queue in named:
        if queue not in queues:
            return UnknownQueue(
                f"the verdict on job {id_} names the queue {queue}, which does not exist: declare "
                "it first"
            )
    if any(map(runs_commands, then)) and not caller.may(Scope.RUN_COMMANDS):
        return Forbidden(command_refusal(f"a follow-up of job {id_}"))
    return InvalidJob(
        f"a follow-up of job {id_} is not accepted: it depends on a job that does not exist, on "
        "itself, or on a job in another partition"
    )


def _settled(settlement: Settlement, outcome: Outcome) -> SettleResult:
    applied = _name_of(settlement.verdict) if outcome is Outcome.SETTLED else UNSET
    return SettleResult(id=settlement.lease.id, outcome=outcome, verdict=applied)


def _refused(id: str, error: UsageError) -> SettleResult:
    return SettleResult(id=id, outcome=Outcome.REFUSED, error=EntryError(error.code, str(error)))


def _name_of(verdict: Verdict) -> AppliedVerdict:
    """The tag of the verdict's struct is its name."""
    name: AppliedVerdict = type(verdict).__struct_config__.tag  # type: ignore[assignment]
    return name
