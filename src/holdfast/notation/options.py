"""Options of the Python API → jobs and queues of the core.

Seconds and plain values go in; milliseconds and bytes come out. A value of the wrong type is
refused here, by name, before it fails deep inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypedDict, TypeVar, get_args

import msgspec
import uuid_utils
from msgspec.structs import asdict, replace

from holdfast.core import codec
from holdfast.core.backoff import Backoff
from holdfast.core.fairness import Fairness
from holdfast.core.limits import Limit
from holdfast.core.model import (
    NO_OVERRIDES,
    JobFilter,
    NewJob,
    Order,
    Overrides,
    Queue,
    Reroute,
    State,
)
from holdfast.core.text import kind_of, with_article
from holdfast.core.workers import ADDRESSED_EXPIRES_MS, worker_queue
from holdfast.errors import InvalidJob, InvalidQueue, UsageError
from holdfast.notation.durations import Duration, to_ms
from holdfast.notation.filters import chosen_states
from holdfast.notation.job import JobOptions
from holdfast.notation.policies import to_backoff
from holdfast.notation.synonyms import remedy


class QueueOptions(TypedDict, total=False):
    """Settings of a queue in the Python API."""

    lease: Duration
    """Take a job back from a worker that is silent for this long."""
    timeout: Duration | None
    """Stop an attempt that runs longer than this."""
    max_attempts: int
    """Failed attempts after which a job becomes a dead letter; 0 is unlimited."""
    max_crashes: int
    """Crashes of its worker after which a job becomes a dead letter."""
    backoff: Backoff | str
    """Delay between attempts, e.g. "exponential(2s, max=10m)"."""
    order: Order
    """Put a retried job behind the jobs that are due, or keep its place."""
    retention: Duration
    """Delete done and cancelled jobs after this long."""
    dead_retention: Duration
    """Delete dead letters after this long."""
    dead_queue: str | None
    """Keep dead letters in this queue."""
    max_depth: int | None
    """Refuse new jobs while this many wait."""
    payload_max: int
    """Refuse larger payloads, in bytes."""
    accepting: bool
    """Accept new jobs, or refuse them."""
    paused: bool
    """Lease no job."""
    limits: Iterable[Limit]
    """Limits on concurrency and rates: see `Holdfast.limit`."""
    fairness: Fairness
    """Ignore tenants, serve them in turn by weight, or put those that take too much behind the
    others."""
    weights: Mapping[str, int]
    """Weights of tenants."""
    aging: Duration | None
    """Raise the priority of a waiting job by one each time this passes."""
    group_batch: int
    """Lease up to this many jobs of a group together."""
    expires: Duration | None
    """Give up a job that has not started this long after it was due."""


_OVERRIDES = ("lease_ms", "timeout_ms", "max_attempts", "max_crashes", "backoff", "reroute")
_JOB_DURATIONS = ("delay", "expires", "key_window", "lease", "timeout")
_QUEUE_DURATIONS = ("lease", "timeout", "retention", "dead_retention", "aging", "expires")
_RAW = (bytes, bytearray, memoryview)

Checked = TypeVar("Checked", bound=msgspec.Struct)


def new_id() -> str:
    """A new job id. Ids sort by the time they were made."""
    return str(uuid_utils.uuid7())


def new_job(task: str, payload: Any, options: JobOptions) -> NewJob:
    """A job ready to enqueue, with a new id unless the options have one. Raises InvalidJob."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    id_ = given.pop("id") if "id" in given else new_id()
    if given:
        _convert_options(given)
    if isinstance(payload, _RAW):
        given["payload"] = bytes(payload)
        given.setdefault("content_type", "application/octet-stream")
    else:
        given["payload"] = codec.encode(payload)
    return checked(NewJob(**given, id=id_, task=task), InvalidJob)


def _convert_options(given: dict[str, Any]) -> None:
    """Replace the options of a job by fields of `NewJob`."""
    _refuse_unknown(given, JobOptions.__annotations__, InvalidJob, "a job")
    if "run_at" in given:
        if "delay" in given:
            raise InvalidJob("a job has either a delay or a run_at, not both")
        given["delay"] = _seconds_until(given.pop("run_at"))
    _durations(given, _JOB_DURATIONS, InvalidJob)
    _address(given)
    if "after" in given:
        given["after"] = _ids(given["after"])
    if "backoff" in given:
        given["backoff"] = to_backoff("backoff", given["backoff"], InvalidJob)
    for name in ("labels", "headers"):
        if isinstance(given.get(name), Mapping):
            given[name] = dict(given[name])
    overrides = {name: given.pop(name) for name in _OVERRIDES if name in given}
    if overrides:
        given["overrides"] = Overrides(**overrides)


def changed_queue(queue: Queue, options: QueueOptions) -> Queue:
    """The queue with the given settings changed. Raises InvalidQueue."""
    given: dict[str, Any] = dict(options)
    _refuse_unknown(given, QueueOptions.__annotations__, InvalidQueue, "a queue")
    _durations(given, _QUEUE_DURATIONS, InvalidQueue)
    if "backoff" in given:
        given["backoff"] = to_backoff("backoff", given["backoff"], InvalidQueue)
    if "limits" in given:
        given["limits"] = tuple(checked_all("limit", given["limits"], Limit, InvalidQueue))
    if isinstance(given.get("weights"), Mapping):
        given["weights"] = dict(given["weights"])
    return checked(replace(queue, **given), InvalidQueue)


def checked(value: Checked, error: type[UsageError]) -> Checked:
    """The value, if each field has its type at any depth. Raises `error` with the field's name."""
    try:
        converted = msgspec.convert(asdict(value), type(value), builtin_types=(bytes,))
    except (msgspec.ValidationError, TypeError) as invalid:
        text, _, where = str(invalid).replace("`", "").partition(" - at $.")
        raise error(f"{where or type(value).__name__}: {text}") from None
    for name in _nested_fields(type(converted)):
        field = getattr(converted, name)
        if field is NO_OVERRIDES:
            continue
        if isinstance(field, msgspec.Struct):
            # `convert` returns a struct unchanged, and would drop unknown keys of a dict.
            checked(expected(name, getattr(value, name), type(field), error), error)
        elif isinstance(field, tuple):
            for each in field:
                if isinstance(each, msgspec.Struct):
                    checked(each, error)
    return converted


@cache
def _nested_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that may hold structs, alone or in a tuple."""
    return tuple(each.name for each in msgspec.structs.fields(kind) if _holds_structs(each.type))


def _holds_structs(kind: Any) -> bool:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return is_struct or any(map(_holds_structs, get_args(kind)))


def checked_filter(wanted: JobFilter) -> JobFilter:
    """The filter, if its fields have their types. States may be words that people use for them, as
    `filters.StateWord` has them. Raises UsageError."""
    given: JobFilter = expected("wanted", wanted, JobFilter)
    if isinstance(given.states, tuple | list) and not all(
        type(each) is State for each in given.states
    ):
        states, waiting = chosen_states(given.states)
        given = replace(given, states=states, waiting=given.waiting or waiting)
    return checked(given, UsageError)


def checked_all(
    name: str,
    values: Iterable[Checked],
    kind: type[Checked],
    error: type[UsageError] = UsageError,
) -> list[Checked]:
    """Check each value before it joins those of other callers in one transaction."""
    if not isinstance(values, Iterable):
        raise error(f"expected a list of {kind.__name__}, not {kind_of(values)}")
    return [checked(expected(name, each, kind, error), error) for each in values]


def expected(name: str, value: Any, kind: Any, error: type[UsageError] = UsageError) -> Any:
    """The value, if it is an instance of the class or union `kind`."""
    if isinstance(value, kind):
        return value
    names = " or ".join(each.__name__ for each in get_args(kind) or (kind,))
    raise error(f"{name} is {kind_of(value)}: give {with_article(names)}")


def _refuse_unknown(
    given: Mapping[str, Any], known: Iterable[str], error: type[UsageError], what: str
) -> None:
    unknown = sorted(set(given).difference(known))
    if unknown:
        raise error(unknown_names(what, unknown, known))


def unknown_names(what: str, unknown: Iterable[str], known: Iterable[str]) -> str:
    """The error for options that something does not have, with their remedy."""
    wrong, names = list(unknown), sorted(known)
    remedies = {name: found for name in wrong if (found := remedy(name, names))}
    if len(wrong) == len(remedies) == 1:
        return f"{what} has no {wrong[0]}: {remedies[wrong[0]]}"
    hints = "".join(f"; {name}: {text}" for name, text in remedies.items())
    return f"{what} has no {', '.join(wrong)}; it has {', '.join(names)}{hints}"


def _durations(given: dict[str, Any], names: Iterable[str], error: type[UsageError]) -> None:
    for name in names:
        if name in given:
            value = given.pop(name)
            given[f"{name}_ms"] = None if value is None else to_ms(name, value, error)


def _address(given: dict[str, Any]) -> None:
    """A job that is addressed to a worker goes to that worker's own queue, and expires."""
    reroute = given.pop("reroute", False)
    if "to" not in given:
        if reroute is not False:
            raise InvalidJob('reroute needs a job that is addressed to a worker: set "to" as well')
        return
    if "queue" in given:
        raise InvalidJob(
            'a job is addressed to a worker or put in a queue: give "to" or "queue", not both'
        )
    given["queue"] = worker_queue(expected("to", given.pop("to"), str, InvalidJob))
    # Counted from when the job is due: a long delay must not make it expire.
    given.setdefault("expires_ms", ADDRESSED_EXPIRES_MS + given.get("delay_ms", 0))
    if reroute is not False:
        given["reroute"] = _reroute(reroute)


def _reroute(given: object) -> Reroute:
    if given is True:
        return Reroute()
    if isinstance(given, Mapping):
        return Reroute(labels=dict(given))
    policy: Reroute = expected("reroute", given, bool | Mapping | Reroute, InvalidJob)
    return policy


def _ids(given: object) -> tuple[str, ...]:
    """The ids of jobs, handles or receipts; a text is an id."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidJob(f"after is {kind_of(given)}: expected a list of jobs or ids")
    ids = [each if isinstance(each, str) else getattr(each, "id", None) for each in given]
    for at, id_ in enumerate(ids):
        if not isinstance(id_, str):
            raise InvalidJob(f"after[{at}] is neither a job nor an id")
    return tuple(dict.fromkeys(id_ for id_ in ids if isinstance(id_, str)))


def _seconds_until(instant: object) -> float:
    """Seconds until the instant, by this machine's clock; 0 if it has passed."""
    if not isinstance(instant, datetime):
        raise InvalidJob(f"run_at is {kind_of(instant)}: expected a datetime")
    if instant.tzinfo is None:
        raise InvalidJob("run_at has no time zone: give one, such as datetime.now(UTC)")
    return max(0.0, (instant - datetime.now(UTC)).total_seconds())
