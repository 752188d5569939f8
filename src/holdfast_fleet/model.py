"""Messages and records of the fleet. Pure: everything that is read here is hostile input."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import msgspec

from holdfast import UsageError

TaskType = Literal["orphaned_instances", "stale_ssm", "old_jobs", "pool_audit"]
TASK_TYPES: Final[tuple[TaskType, ...]] = get_args(TaskType)

MANAGED_TAG: Final = "runs-fleet:managed"
POOL_TAG: Final = "runs-fleet:pool"
PARAMETER_PREFIX: Final = "/runs-fleet/runners/"
LOCK_PREFIX: Final = "lock#"
"""Items of the pools table that begin so are locks, not pools."""

RUNNING: Final = "running"
QUEUED: Final = "queued"
RECORD_STATUS: Final = {
    "success": "completed",
    "failure": "failed",
    "timeout": "timeout",
    "interrupted": "interrupted",
}
"""The status in a message → the status of the job record."""
TERMINAL: Final = tuple(RECORD_STATUS.values())
"""A record with one of these never changes again."""

ERROR_MAX: Final = 4_000
_SHOWN_MAX: Final = 80
_PARAMETER: Final = re.compile(r"/runs-fleet/runners/(i-[0-9a-f]{8,17})/config\Z")

InstanceId = Annotated[str, msgspec.Meta(pattern=r"\Ai-[0-9a-f]{8,17}\Z")]
"""It becomes a part of a parameter's path, so that nothing else is accepted."""
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Message = TypeVar("Message", "Termination", "Housekeeping")


class InvalidMessage(UsageError):
    """A message is not what the document says: the text names the field and its value."""


class Termination(msgspec.Struct, frozen=True, kw_only=True):
    """A runner ended: sent by its agent when the job is over."""

    instance_id: InstanceId
    job_id: Annotated[str, msgspec.Meta(pattern=r"\A[\x21-\x7e]{1,256}\Z")]
    status: Literal["success", "failure", "timeout", "interrupted"]
    exit_code: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**32 - 1)]
    duration_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    started_at: Moment
    completed_at: Moment
    error: str | None = None

    @property
    def record_status(self) -> str:
        return RECORD_STATUS[self.status]

    @property
    def parameter(self) -> str:
        return parameter_name(self.instance_id)


class Housekeeping(msgspec.Struct, frozen=True, kw_only=True):
    """An order to clean up or to audit, sent by a scheduled rule."""

    task_type: TaskType
    timestamp: Moment
    params: dict[str, Any] = {}

    @property
    def hours(self) -> float:
        """The period that an audit is about."""
        hours = self.params.get("hours", 24)
        if type(hours) not in (int, float) or not 0 < hours <= 24 * 366:
            raise InvalidMessage(
                f"params.hours {_shown(hours)}: expected a number above 0, at most {24 * 366}"
            )
        return float(hours)


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An item of the jobs table. A field that is missing, or has another type, is None."""

    job_id: str
    instance_id: str | None = None
    status: str | None = None
    completed_at: str | None = None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as EC2 describes it. `launched_at` is in seconds since 1970."""

    id: str
    state: str | None = None
    is_managed: bool = False
    launched_at: int | None = None
    pool: str | None = None


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of SSM, without its value."""

    name: str
    modified_at: int | None = None


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """An item of the pools table. `volume_gb` is the disk of each instance."""

    name: str
    instance_type: str | None = None
    volume_gb: float | None = None


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars: of a gigabyte of disk for a month, and of each instance type for an hour."""

    gb_month: Annotated[float, msgspec.Meta(ge=0)] | None = None
    hourly: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}


class PoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """The audit of one pool; None is unknown. `idle` instances run without a job, `assigned` ones
    have one. Costs are US dollars of the whole period, `utilization` is a share from 0 to 1."""

    pool: str
    hours: float
    running: int | None = None
    stopped: int | None = None
    idle: int | None = None
    assigned: int | None = None
    idle_cost: float | None = None
    compute_cost: float | None = None
    utilization: float | None = None


class TerminateInstance(msgspec.Struct, frozen=True, tag="terminate_instance"):
    """The instance has no job and is too old to get one."""

    instance_id: str
    why: str


class DeleteParameter(msgspec.Struct, frozen=True, tag="delete_parameter"):
    """The instance of the parameter is gone."""

    name: str
    why: str


class DeleteJob(msgspec.Struct, frozen=True, tag="delete_job"):
    """The record is past its retention."""

    job_id: str
    why: str


Action = TerminateInstance | DeleteParameter | DeleteJob


class SkippedSubject(msgspec.Struct, frozen=True):
    """An instance, parameter or record that a task leaves as it is, and why."""

    subject: str
    why: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of a task: what to do, and what to leave."""

    actions: tuple[Action, ...] = ()
    kept: tuple[SkippedSubject, ...] = ()


def parse_termination(fields: Mapping[str, Any]) -> Termination:
    """The message with these fields; others are ignored. Raises InvalidMessage."""
    found = _parsed(fields, Termination)
    for name in ("started_at", "completed_at"):
        try:
            iso(getattr(found, name))
        except OverflowError:
            raise InvalidMessage(f"{name} {_shown(fields[name])}: out of range") from None
    return found


def parse_housekeeping(fields: Mapping[str, Any]) -> Housekeeping:
    """The message with these fields; others are ignored. Raises InvalidMessage."""
    found = _parsed(fields, Housekeeping)
    _ = found.hours
    return found


def parse_time(text: str | None) -> int | None:
    """Seconds since 1970 of a time in ISO 8601 with its zone; None if it is not one."""
    try:
        at = datetime.fromisoformat(text or "")
        return int(at.timestamp()) if at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def iso(at: datetime) -> str:
    """In UTC and whole seconds: texts of one form sort by time, and the index sorts texts."""
    return at.astimezone(UTC).replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def iso_of(seconds: int) -> str:
    """The same for seconds since 1970."""
    return iso(datetime.fromtimestamp(seconds, UTC))


def parameter_name(instance_id: str) -> str:
    """The parameter with the configuration of a runner."""
    return f"{PARAMETER_PREFIX}{instance_id}/config"


def instance_of(parameter: str) -> str | None:
    """The instance whose configuration a parameter is; None if it is another one."""
    found = _PARAMETER.match(parameter)
    return found[1] if found else None


def _parsed(fields: Mapping[str, Any], kind: type[Message]) -> Message:
    try:
        return msgspec.convert(dict(fields), kind)
    except msgspec.ValidationError as error:
        raise InvalidMessage(_explained(str(error), fields)) from None


def _explained(text: str, fields: Mapping[str, Any]) -> str:
    """The error of the parser with the value in front."""
    said, _, path = text.replace("`", "").partition(" - at $.")
    name = path.partition("[")[0].partition(".")[0]
    if name not in fields:
        return said.removeprefix("Object ")
    return f"{path} {_shown(fields[name])}: {said}"


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
