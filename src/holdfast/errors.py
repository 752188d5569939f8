"""Every exception Holdfast raises, with a stable `code` and, as docstring, its remedy.

HoldfastError
├── UsageError     InvalidJob · InvalidQueue · PayloadTooLarge · UnknownQueue · UnknownKind ·
│                  UnknownParent · CircularJobs · QueueFull · NotAccepting · ConfigError ·
│                  NotFound · Exists · WrongState · Unsupported · Unauthenticated · Forbidden
│                  (ReadOnly) · QuotaExceeded
├── LeaseLost      the race you must expect
├── NoResult       JobFailed · JobCancelled · JobGone · ResultTimeout · ResultMismatch
└── EngineError    EngineUnavailable (Overloaded) · OutcomeUnknown · StorageFull ·
                   SchemaMismatch · EngineClosed
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar


class HoldfastError(Exception):
    """The base class of all errors that Holdfast raises."""

    code: ClassVar[str] = "error"


class UsageError(HoldfastError):
    """The call itself is wrong: change it; repeating it does not help."""

    code = "usage"


class InvalidJob(UsageError):
    """A field of the job is out of bounds: the text names the field and the bound."""

    code = "invalid_job"


class InvalidQueue(UsageError):
    """A queue's name or setting is out of bounds: the text names it and the bound."""

    code = "invalid_queue"


class PayloadTooLarge(UsageError):
    """Store the data elsewhere and enqueue a reference to it."""

    code = "payload_too_large"


class UnknownQueue(UsageError):
    """Declare the queue first, or correct its name."""

    code = "unknown_queue"


class NotFound(UsageError):
    """The text names what was not found and the command that lists what exists."""

    code = "not_found"


class Exists(UsageError):
    """The name is taken: change the existing one, or choose another name."""

    code = "exists"


class WrongState(UsageError):
    """The job's state does not allow this: the text says which state it must be in."""

    code = "wrong_state"


class UnknownKind(UsageError):
    """The text lists the kinds that exist."""

    code = "unknown_kind"


class UnknownParent(UsageError):
    """A job can depend only on existing jobs: enqueue the parent first, or in the same call."""

    code = "unknown_parent"


class CircularJobs(UsageError):
    """These jobs wait for each other and none could ever start: leave one of them out."""

    code = "circular_jobs"


class QueueFull(UsageError):
    """The queue is at its maximum depth: try again once workers have caught up."""

    code = "queue_full"


class NotAccepting(UsageError):
    """The queue does not accept new jobs: try again once it is open."""

    code = "not_accepting"


class ConfigError(UsageError):
    """A setting or URL is invalid: the text names it and shows a valid one."""

    code = "config"


class Unsupported(UsageError):
    """This engine cannot do that: choose another engine or leave the feature out."""

    code = "unsupported"

    def __init__(self, engine: str, feature: str, remedy: str = "") -> None:
        """Without a `remedy` the text points to the engine table."""
        super().__init__(
            f"the {engine} engine does not support {feature}: "
            f"{remedy or 'use an engine that does; see the engine table in the documentation'}"
        )
        self.engine = engine
        self.feature = feature
        self.remedy = remedy

    @classmethod
    def from_text(cls, text: str) -> Unsupported:
        """Parse the text of a receipt, which names the engine, the feature and the remedy."""
        named = re.fullmatch(r"the (\S+) engine does not support (.+?): (.+)", text, re.DOTALL)
        error = cls(*named.groups()) if named else cls("", "")
        error.args = (text,)
        return error


class Unauthenticated(UsageError):
    """The server requires a valid token: create one with `holdfast token create`."""

    code = "unauthenticated"


class Forbidden(UsageError):
    """The caller may not do this: the text says which scope, queue or right is missing."""

    code = "forbidden"


class ReadOnly(Forbidden):
    """This server refuses every change (`--read-only`): use another server of the store."""

    code = "read_only"


class QuotaExceeded(UsageError):
    """A quota of the tenant or the namespace is used up: try again after the given pause."""

    code = "quota_exceeded"

    def __init__(self, text: str = "", *, retry_ms: int = 1_000) -> None:
        super().__init__(text)
        self.retry_ms = retry_ms


class LeaseLost(HoldfastError):
    """The lease is lost and the job may run elsewhere: stop working on it."""

    code = "lease_lost"


class NoResult(HoldfastError):
    """The job has no result: the text says why, and `job` is the job, if it was found."""

    code = "no_result"

    def __init__(self, text: str, job: Any = None) -> None:
        super().__init__(text)
        self.job = job


class JobFailed(NoResult):
    """The job is a dead letter: see its reason and last failure; redrive it once the cause is
    fixed.
    """

    code = "job_failed"


class JobCancelled(NoResult):
    """The job was cancelled: enqueue it again if it is still wanted."""

    code = "job_cancelled"


class JobGone(NoResult):
    """The job was deleted or is past its queue's retention: keep jobs longer to read results."""

    code = "job_gone"


class ResultTimeout(NoResult, TimeoutError):
    """The job has not ended yet and continues: wait longer, or check again later."""

    code = "result_timeout"


class ResultMismatch(NoResult):
    """The stored result does not fit the return annotation of the task: correct the annotation or
    the handler. `job.result` has the stored bytes.
    """

    code = "result_mismatch"


class EngineError(HoldfastError):
    """The store failed; the call itself is valid."""

    code = "engine"


class EngineUnavailable(EngineError):
    """Nothing was changed: try again later, with backoff."""

    code = "unavailable"


class Overloaded(EngineUnavailable):
    """The server is overloaded and nothing was changed: try again after the given pause."""

    code = "overloaded"


class OutcomeUnknown(EngineError):
    """The call may or may not have taken effect: repeating it with the same ids, keys and tokens is
    safe."""

    code = "outcome_unknown"

    def __init__(self, text: str = "", *, known: Mapping[int, Any] | None = None) -> None:
        super().__init__(text)
        self.known: dict[int, Any] = dict(known or {})
        """The known answers, by their positions in the batch."""


class StorageFull(EngineError):
    """The disk is full, except for a reserve: free some space. Leased jobs can still be settled."""

    code = "storage_full"


class SchemaMismatch(EngineError):
    """The store was written by another version: run the version the text names."""

    code = "schema_mismatch"


class EngineClosed(EngineError):
    """The engine is closed, or belongs to the process this one was forked from: open a new one."""

    code = "closed"


BY_CODE: dict[str, type[HoldfastError]] = {}


def _collect(root: type[HoldfastError]) -> None:
    BY_CODE[root.code] = root
    for child in root.__subclasses__():
        _collect(child)


_collect(HoldfastError)
