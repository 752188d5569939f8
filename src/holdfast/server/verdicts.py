"""What a client says of a lease → the settlement of it. `core.policy` decides what is not said."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated, Literal, assert_never

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast import newjob
from holdfast.core import checks, limits, policy
from holdfast.core.model import Failure, FailureKind, Job, Lease, Note, Queue, Reason
from holdfast.core.verdict import Bury, Complete, Forward, Release, Settlement, Verdict
from holdfast.durations import to_ms
from holdfast.errors import Forbidden, InvalidJob, UnknownQueue, UsageError
from holdfast.server.bodies import AnyJobBody
from holdfast.server.callers import Caller, Scope
from holdfast.server.commands import command_text, runs_commands
from holdfast.server.enqueuing import Desk
from holdfast.server.shapes import JobId, Json, QueueName, Seconds, Token

Word = Literal["complete", "failed", "retry", "bury", "release", "forward"]

POLICY: tuple[Word, ...] = ("failed", "retry")
"""These are decided by how the job and its queue stand."""

_TAKES: dict[Word, tuple[str, ...]] = {
    "complete": ("result", "then"),
    "failed": ("error",),
    "retry": ("error", "delay"),
    "bury": ("error",),
    "release": ("error", "delay"),
    "forward": ("queue",),
}
_OPTIONS = ("result", "then", "error", "delay", "queue")


class FailureBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What went wrong. A `crash` is the death of the process that ran it, which is counted. Of a
    long text the head and the tail are kept."""

    message: str = ""
    type: str = ""
    trace: str = ""
    kind: Literal["error", "timeout", "crash"] = "error"
    exit_code: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    signal: Annotated[int, Meta(ge=0, le=255)] | None = None


class VerdictBody(msgspec.Struct, forbid_unknown_fields=True):
    """How one lease ends. `complete` takes a `result` and follow-up jobs, which go in together with
    it or not at all; `failed` an `error`, and the policy of job and queue decides between another
    attempt and a dead letter; `retry` asks for another attempt, after the `delay` or, without one,
    after its back-off, which it gets while it has one left; `bury` makes it a dead letter;
    `release` gives the attempt back, through no fault of the job; `forward` hands it on to another
    queue. `output` is what it printed, of which the head and the tail are kept."""

    id: JobId
    token: Token
    verdict: Word
    result: Json | UnsetType = UNSET
    error: str | FailureBody | None = None
    delay: Seconds | None = None
    then: Annotated[list[AnyJobBody], Meta(max_length=limits.FOLLOW_UPS_MAX)] | None = None
    queue: QueueName | None = None
    output: str | None = None


def settlement_of(said: VerdictBody, lease: Lease, queue: Queue | None, desk: Desk) -> Settlement:
    """`queue` is the job's, for the words of `POLICY`. UsageError: it is no verdict."""
    for name in _OPTIONS:
        if getattr(said, name) not in (None, UNSET) and name not in _TAKES[said.verdict]:
            raise UsageError(f"a verdict {said.verdict} takes no {name}")
    note = None if said.output is None else Note(output=said.output.encode())
    verdict = _verdict(said, lease.job, queue or Queue(name=lease.job.queue), desk)
    settlement = Settlement(lease=lease, verdict=verdict, note=note)
    checks.check_settlement(settlement)
    return settlement


def is_last(said: VerdictBody, lease: Lease, queue: Queue | None) -> bool:
    """Whether policy would make a dead letter of the job, as it was leased. If somebody asked for
    its end since, it is cancelled instead."""
    if said.verdict not in POLICY:
        return False
    rules = queue or Queue(name=lease.job.queue)
    # How long it would wait for another attempt does not matter for that.
    decided = policy.after_asking(rules, lease.job, _failure(said.error), None, 0.0)
    return isinstance(decided, Bury)


def why_refused(settlement: Settlement, queues: Mapping[str, Queue], caller: Caller) -> UsageError:
    """Of a verdict within its bounds, which the engine did not take all the same; `queues` are
    those that there are for the caller."""
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
        return Forbidden(command_text(f"a follow-up of job {id_}"))
    return InvalidJob(
        f"a follow-up of job {id_} cannot come in: it is after a job that does not exist, after "
        "itself, or must be in another partition"
    )


def _verdict(said: VerdictBody, job: Job, queue: Queue, desk: Desk) -> Verdict:
    delay_ms = None if said.delay is None else to_ms("delay", said.delay, UsageError)
    failure = _failure(said.error)
    match said.verdict:
        case "complete":
            then = tuple(desk.job(each, "default") for each in said.then or ())
            return Complete(_result(said.result), then)
        case "failed":
            failed = failure or Failure(message="it failed, and did not say why")
            return policy.after_failure(queue, job, failed, random.random())
        case "retry":
            return policy.after_asking(queue, job, failure, delay_ms, random.random())
        case "bury":
            return Bury(Reason.EXPLICIT, failure)
        case "release":
            return Release("" if failure is None else failure.message, delay_ms or 0)
        case "forward":
            if said.queue is None:
                raise UsageError("a verdict forward needs the queue to go to")
            return Forward(said.queue)
        case never:
            assert_never(never)


def _result(result: msgspec.Raw | UnsetType) -> bytes | None:
    raw = newjob.json_of(result, "result")
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
