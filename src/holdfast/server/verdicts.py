"""What a client says of a lease → the settlement of it. `core.lifecycle` has the policy."""

from __future__ import annotations

import random
from typing import Annotated, Literal, assert_never

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast import newjob
from holdfast.core import checks, lifecycle, limits
from holdfast.core.model import Failure, FailureKind, Job, Lease, Note, Queue, Reason
from holdfast.core.verdict import Bury, Complete, Forward, Release, Retry, Settlement, Verdict
from holdfast.durations import to_ms
from holdfast.errors import UsageError
from holdfast.server.enqueuing import AnyJobBody, Desk
from holdfast.server.shapes import JobId, Json, QueueName, Seconds, Text, Token

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
    """What went wrong. A `crash` is the death of the process that ran it, which is counted."""

    message: Text = ""
    type: Annotated[str, Meta(max_length=limits.NAME_BYTES_MAX)] = ""
    trace: Text = ""
    kind: Literal["error", "timeout", "crash"] = "error"
    exit_code: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    signal: Annotated[int, Meta(ge=0, le=255)] | None = None


class VerdictBody(msgspec.Struct, forbid_unknown_fields=True):
    """How one lease ends. `complete` takes a `result` and follow-up jobs, which go in together with
    it or not at all; `failed` an `error`, and the policy of job and queue decides between another
    attempt and a dead letter; `retry` asks for another attempt after the `delay`, which it gets
    while it has one left; `bury` makes it a dead letter; `release` gives the attempt back, through
    no fault of the job; `forward` hands it on to another queue. `output` is what it printed."""

    id: JobId
    token: Token
    verdict: Word
    result: Json | UnsetType = UNSET
    error: Text | FailureBody | None = None
    delay: Seconds | None = None
    then: Annotated[list[AnyJobBody], Meta(max_length=limits.FOLLOW_UPS_MAX)] | None = None
    queue: QueueName | None = None
    output: Annotated[str, Meta(max_length=limits.OUTPUT_MAX)] | None = None


def settlement_of(said: VerdictBody, lease: Lease, queue: Queue | None, desk: Desk) -> Settlement:
    """`queue` is the job's, for the words of `POLICY`. UsageError: it is no verdict."""
    for name in _OPTIONS:
        if getattr(said, name) not in (None, UNSET) and name not in _TAKES[said.verdict]:
            raise UsageError(f"a verdict {said.verdict} takes no {name}")
    note = None if said.output is None else Note(output=said.output.encode())
    policy = queue or Queue(name=lease.job.queue)
    verdict = _verdict(said, lease.job, policy, desk)
    settlement = Settlement(lease=lease, verdict=verdict, note=note)
    checks.check_settlement(settlement)
    return settlement


def is_last(said: VerdictBody, lease: Lease, queue: Queue | None) -> bool:
    """Whether policy would make a dead letter of the job, as it was leased. If somebody asked for
    its end since, it is cancelled instead."""
    if said.verdict not in POLICY:
        return False
    failure = (_failure(said.error) if said.verdict == "failed" else None) or Failure()
    policy = queue or Queue(name=lease.job.queue)
    return isinstance(lifecycle.after_failure(policy, lease.job, failure, 0.0), Bury)


def _verdict(said: VerdictBody, job: Job, queue: Queue, desk: Desk) -> Verdict:
    delay_ms = 0 if said.delay is None else to_ms("delay", said.delay, UsageError)
    match said.verdict:
        case "complete":
            then = tuple(desk.job(each, "default") for each in said.then or ())
            return Complete(_result(said.result), then)
        case "failed":
            failure = _failure(said.error) or Failure(message="it failed, and did not say why")
            return lifecycle.after_failure(queue, job, failure, random.random())
        case "retry":
            return _after_retry(queue, job, delay_ms, _failure(said.error))
        case "bury":
            return Bury(Reason.EXPLICIT, _failure(said.error))
        case "release":
            why = said.error.message if isinstance(said.error, FailureBody) else said.error
            return Release(why or "", delay_ms)
        case "forward":
            if said.queue is None:
                raise UsageError("a verdict forward needs the queue to go to")
            return Forward(said.queue)
        case never:
            assert_never(never)


def _after_retry(queue: Queue, job: Job, delay_ms: int, failure: Failure | None) -> Verdict:
    """A client may ask for another attempt, and not for more than there are."""
    if lifecycle.exhausted(queue, job) and not job.cancel_requested:
        most = lifecycle.attempts_max(queue, job)
        return Bury(
            Reason.ATTEMPTS,
            failure or Failure(message=f"it asked to be retried after attempt {most} of {most}"),
        )
    return Retry(delay_ms, failure)


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
