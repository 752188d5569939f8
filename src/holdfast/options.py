"""What a program says about a job or a queue, in its own words → what the core carries.

Seconds and plain values go in; milliseconds and bytes come out. Whatever has a wrong type is
refused here, by its name, before it can fail somewhere deep inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict, TypeVar, get_args

import msgspec
import uuid_utils
from msgspec.structs import asdict, astuple, replace

from holdfast.backoffs import to_backoff
from holdfast.core import codec
from holdfast.core.backoff import Backoff
from holdfast.core.flow import Fairness, Limit
from holdfast.core.model import (
    NO_OVERRIDES,
    AfterOn,
    JobFilter,
    KeyPolicy,
    NewJob,
    Order,
    Overrides,
    ParentDeath,
    Queue,
    Reroute,
)
from holdfast.core.workers import ADDRESSED_EXPIRES_MS, worker_queue
from holdfast.durations import Duration, to_ms
from holdfast.errors import InvalidJob, InvalidQueue, UsageError


class JobOptions(TypedDict, total=False):
    """Everything a job can carry besides its task and payload; None is the same as left out.

    `to` is the name of the worker that shall run it, which has a queue of its own; with `reroute`
    another one may when it is not taken in time: any, or one with these labels. `after` are jobs
    that must have ended first, as `after_on` says: ids, or anything with an `id`.
    """

    id: str | None
    queue: str | None
    content_type: str | None
    priority: int | None
    delay: Duration | None
    run_at: datetime | None
    expires: Duration | None
    key: str | None
    key_window: Duration | None
    key_policy: KeyPolicy | None
    tenant: str | None
    group: str | None
    labels: Mapping[str, str] | None
    headers: Mapping[str, str] | None
    lease: Duration | None
    timeout: Duration | None
    max_attempts: int | None
    max_crashes: int | None
    backoff: Backoff | str | None
    to: str | None
    reroute: bool | Mapping[str, str] | Reroute | None
    after: Iterable[Any] | None
    after_on: AfterOn | None
    parent_death: ParentDeath | None


class QueueOptions(TypedDict, total=False):
    """Everything a queue can be told."""

    lease: Duration
    timeout: Duration | None
    max_attempts: int
    max_crashes: int
    backoff: Backoff | str
    order: Order
    retention: Duration
    dead_retention: Duration
    dead_queue: str | None
    max_depth: int | None
    payload_max: int
    accepting: bool
    paused: bool
    limits: Iterable[Limit]
    fairness: Fairness
    weights: Mapping[str, int]
    aging: Duration | None
    group_batch: int


_OVERRIDES = ("lease_ms", "timeout_ms", "max_attempts", "max_crashes", "backoff", "reroute")
_JOB_DURATIONS = ("delay", "expires", "key_window", "lease", "timeout")
_QUEUE_DURATIONS = ("lease", "timeout", "retention", "dead_retention", "aging")
_RAW = (bytes, bytearray, memoryview)
_NESTED = (msgspec.Struct, tuple)

Checked = TypeVar("Checked", bound=msgspec.Struct)


def new_id() -> str:
    """Sorts by time of making."""
    return str(uuid_utils.uuid7())


def new_job(task: str, payload: Any, options: JobOptions) -> NewJob:
    """A job ready to enqueue, with an id of its own unless one is given."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
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
    if isinstance(payload, _RAW):
        given["payload"] = bytes(payload)
        given.setdefault("content_type", "application/octet-stream")
    else:
        given["payload"] = codec.encode(payload)
    for name in ("labels", "headers"):
        if isinstance(given.get(name), Mapping):
            given[name] = dict(given[name])
    overrides = {name: given.pop(name) for name in _OVERRIDES if name in given}
    if overrides:
        given["overrides"] = Overrides(**overrides)
    return checked(NewJob(**{"id": new_id(), **given, "task": task}), InvalidJob)


def changed_queue(queue: Queue, options: QueueOptions) -> Queue:
    """The queue with the settings that are given; the others stay."""
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


def checked(value: Checked, wrong: type[UsageError]) -> Checked:
    """The value, when each of its fields has the type it should, however deep it lies."""
    try:
        read = msgspec.convert(asdict(value), type(value), builtin_types=(bytes,))
    except (msgspec.ValidationError, TypeError) as error:
        text, _, where = str(error).replace("`", "").partition(" - at $.")
        raise wrong(f"{where or type(value).__name__}: {text}") from None
    for name, field in zip(read.__struct_fields__, astuple(read), strict=True):
        if not isinstance(field, _NESTED) or field is NO_OVERRIDES:
            continue
        if isinstance(field, msgspec.Struct):
            # A value that is there already is not looked into, and a dict would lose what is
            # misspelt in it.
            checked(expected(name, getattr(value, name), type(field), wrong), wrong)
        else:
            for each in field:
                if isinstance(each, msgspec.Struct):
                    checked(each, wrong)
    return read


def checked_filter(wanted: JobFilter) -> JobFilter:
    given: JobFilter = expected("wanted", wanted, JobFilter)
    return checked(given, UsageError)


def checked_all(
    name: str,
    values: Iterable[Checked],
    kind: type[Checked],
    wrong: type[UsageError] = UsageError,
) -> list[Checked]:
    """Looked at before they join other callers' in one transaction."""
    if not isinstance(values, Iterable):
        raise wrong(f"a {type(values).__name__} is no list of a {kind.__name__} each")
    return [checked(expected(name, each, kind, wrong), wrong) for each in values]


def expected(name: str, value: Any, kind: Any, wrong: type[UsageError] = UsageError) -> Any:
    """The value itself, when it is of that class, or of one of that union."""
    if isinstance(value, kind):
        return value
    wanted = " or ".join(each.__name__ for each in get_args(kind) or (kind,))
    raise wrong(f"{name} is a {type(value).__name__}: give a {wanted}")


def _refuse_unknown(
    given: Mapping[str, Any], known: Iterable[str], wrong: type[UsageError], what: str
) -> None:
    unknown = sorted(set(given).difference(known))
    if unknown:
        raise wrong(f"{what} has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")


def _durations(given: dict[str, Any], names: Iterable[str], wrong: type[UsageError]) -> None:
    for name in names:
        if name in given:
            value = given.pop(name)
            given[f"{name}_ms"] = None if value is None else to_ms(name, value, wrong)


def _address(given: dict[str, Any]) -> None:
    """A job for one worker waits in that worker's queue, and not for ever."""
    reroute = given.pop("reroute", False)
    if "to" not in given:
        if reroute is not False:
            raise InvalidJob("reroute is for a job that is to one worker: give to as well")
        return
    if "queue" in given:
        raise InvalidJob("a job is either to one worker or in a queue: give to or queue, not both")
    given["queue"] = worker_queue(expected("to", given.pop("to"), str, InvalidJob))
    # From when it is due, or a delay would be its death.
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
    """Of jobs, handles or receipts; an id stands for itself."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidJob(f"after is a {type(given).__name__}: give a list of jobs or of their ids")
    ids = [each if isinstance(each, str) else getattr(each, "id", None) for each in given]
    for at, id_ in enumerate(ids):
        if not isinstance(id_, str):
            raise InvalidJob(f"after has at {at} what is neither an id nor has one")
    return tuple(dict.fromkeys(id_ for id_ in ids if isinstance(id_, str)))


def _seconds_until(instant: object) -> float:
    """By this machine's clock; what is past is due now."""
    if not isinstance(instant, datetime):
        raise InvalidJob(f"run_at is a {type(instant).__name__}, not a datetime")
    if instant.tzinfo is None:
        raise InvalidJob("run_at has no time zone: say which, such as datetime.now(UTC)")
    return max(0.0, (instant - datetime.now(UTC)).total_seconds())
