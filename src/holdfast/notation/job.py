"""The one definition of a job's fields, and the bounded types of their values.

`JobLine` is the table: each field with its type in JSON, its flag and its bounds over HTTP. JSON
lines, the flags of `enqueue`, `schedule add` and `job edit`, and HTTP bodies are made from it.
`JobOptions` lists the options of the Python API once more, because type checkers read it; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, TypedDict, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from holdfast.core import bounds
from holdfast.core.backoff import Backoff
from holdfast.core.model import AfterOn, KeyHold, KeyPolicy, ParentDeath, Reroute
from holdfast.notation import patterns
from holdfast.notation.durations import Duration
from holdfast.notation.patterns import NO_NUL

_SECONDS_MAX = bounds.DELAY_MS_MAX // bounds.SECOND_MS

QueueName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,80}$", max_length=80, examples=["default"])
]
TaskName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_.:/-]{1,200}$", max_length=200, examples=["mail:send"])
]
JobId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:@-]{1,128}$", max_length=128)]
Name = Annotated[str, Meta(min_length=1, max_length=bounds.NAME_BYTES_MAX, pattern=NO_NUL)]
"""A key, tenant, group or worker: a short text."""

Pairs = Annotated[
    dict[Name, Annotated[str, Meta(max_length=bounds.PAIR_VALUE_BYTES_MAX, pattern=NO_NUL)]],
    Meta(max_length=bounds.PAIRS_MAX),
]
Seconds = (
    Annotated[float, Meta(ge=0, le=_SECONDS_MAX, description="Seconds.")]
    | Annotated[
        str,
        Meta(
            pattern=patterns.DURATION,
            description="A number with a unit: 250ms, 30s, 5m, 2h, 1d, 1w. Without one: seconds.",
            examples=["30s"],
        ),
    ]
)
Priority = Annotated[int, Meta(ge=bounds.PRIORITY_MIN, le=bounds.PRIORITY_MAX)]
Attempts = Annotated[int, Meta(ge=0, le=bounds.ATTEMPTS_MAX)]
Crashes = Annotated[int, Meta(ge=1, le=bounds.ATTEMPTS_MAX)]
BackoffText = Annotated[str, Meta(examples=["exponential(2s, max=10m)"])]
ContentType = Annotated[str, Meta(min_length=1, max_length=127)]
Command = Annotated[str, Meta(min_length=1)] | Annotated[list[str], Meta(min_length=1)]
Parents = Annotated[list[JobId], Meta(max_length=bounds.PARENTS_MAX)]
Json = Annotated[Raw, Meta(description="Any JSON value.")]


class JobField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a job as a flag and over HTTP.

    `value` names the kind of value in help texts, `help` describes what setting it does and `edit`
    what changing it does; `edit` is "" if it cannot be changed. `flag` is the type of the flag and
    `http` the bounded type of the request. `per_job` fields belong to a single job, so schedules do
    not have them; `place` fields decide where the job waits.
    """

    value: str
    help: str
    http: Any
    flag: Any = str
    edit: str = ""
    per_job: bool = False
    place: bool = False


_Seconds = str | int | float


class JobLine(msgspec.Struct, forbid_unknown_fields=True):
    """A job as people write it, in JSON or as flags. None is the same as left out."""

    task: Annotated[
        str | None,
        JobField(value="NAME", help="Task to run, e.g. mail:send.", http=TaskName),
    ] = None
    payload: Annotated[
        Raw | UnsetType,
        JobField(
            value="JSON",
            help="Arguments of the task, or body of the webhook.",
            http=Json,
            edit="Replace the payload.",
        ),
    ] = UNSET
    command: Annotated[
        str | list[str] | None,
        JobField(
            value="COMMAND",
            help="Run this shell command instead of a task.",
            http=Command,
        ),
    ] = None
    webhook: Annotated[
        str | None,
        JobField(
            value="URL", help="Send the payload to this URL instead of running a task.", http=str
        ),
    ] = None
    cwd: Annotated[
        str | None, JobField(value="PATH", help="Directory in which the command runs.", http=str)
    ] = None
    env: Annotated[
        dict[str, str] | None,
        JobField(
            value="NAME=VALUE",
            help="Set an environment variable of the command. Repeatable.",
            http=dict[str, str],
            flag=list[str],
        ),
    ] = None
    id: Annotated[
        str | None,
        JobField(
            value="ID",
            help="Use this id. Enqueueing an existing id adds nothing.",
            http=JobId,
            per_job=True,
        ),
    ] = None
    queue: Annotated[
        str | None,
        JobField(
            value="NAME",
            help="Queue to put the job in. [default: default]",
            http=QueueName,
            edit="Move the job to this queue.",
            place=True,
        ),
    ] = None
    to: Annotated[
        str | None,
        JobField(
            value="NAME",
            help="Address the job to this worker instead of a queue.",
            http=Name,
            place=True,
        ),
    ] = None
    reroute: Annotated[
        bool | dict[str, str] | None,
        JobField(
            value="LABEL",
            help="If the worker of --to does not take the job in time, give it to any worker "
            "(any), or to one with the label NAME=VALUE. Repeatable.",
            http=bool | Pairs,
            flag=list[str],
            place=True,
        ),
    ] = None
    priority: Annotated[
        int | None,
        JobField(
            value="N",
            help="Run before jobs of a lower priority, -100 to 100. [default: 0]",
            http=Priority,
            flag=int,
            edit="Set the priority, -100 to 100.",
        ),
    ] = None
    delay: Annotated[
        _Seconds | None,
        JobField(
            value="DURATION",
            help="Wait at least this long after enqueueing before the job starts, e.g. 10m.",
            http=Seconds,
            edit="Wait at least this long before a waiting job starts.",
        ),
    ] = None
    run_at: Annotated[
        datetime | None,
        JobField(
            value="TIME",
            help="Start no earlier than this time, e.g. 2030-01-31T12:00:00Z.",
            http=Annotated[datetime, Meta(tz=True)],
            per_job=True,
        ),
    ] = None
    expires: Annotated[
        _Seconds | None,
        JobField(
            value="DURATION",
            help="Give up if the job has not started by then, e.g. 1h.",
            http=Seconds,
            edit="Give up if the job has not started within this time.",
        ),
    ] = None
    key: Annotated[
        str | None,
        JobField(
            value="KEY",
            help="Enqueue only once: adds nothing while another job holds the key.",
            http=Name,
            per_job=True,
        ),
    ] = None
    key_window: Annotated[
        _Seconds | None,
        JobField(
            value="DURATION",
            help="Hold the key for this long. [default: 1d]",
            http=Seconds,
            per_job=True,
        ),
    ] = None
    key_policy: Annotated[
        KeyPolicy | None,
        JobField(
            value="POLICY",
            help="Keep the waiting job that holds the key as it is, replace its payload, or merge "
            "the new payload into it. [default: keep]",
            http=KeyPolicy,
            flag=KeyPolicy,
            per_job=True,
        ),
    ] = None
    key_hold: Annotated[
        KeyHold | None,
        JobField(
            value="HOLD",
            help="Add nothing while the job that holds the key is unfinished or its window is "
            "open (job), or only while its window is open (window). [default: job]",
            http=KeyHold,
            flag=KeyHold,
            per_job=True,
        ),
    ] = None
    tenant: Annotated[
        str | None,
        JobField(value="NAME", help="Tenant, for fair shares and quotas.", http=Name),
    ] = None
    group: Annotated[
        str | None,
        JobField(
            value="NAME",
            help="Jobs of a group run one at a time, in order.",
            http=Name,
        ),
    ] = None
    labels: Annotated[
        dict[str, str] | None,
        JobField(
            value="NAME=VALUE",
            help="Label to find the job by. Repeatable.",
            http=Pairs,
            flag=list[str],
            edit="Set a label. Repeatable.",
        ),
    ] = None
    headers: Annotated[
        dict[str, str] | None,
        JobField(
            value="NAME=VALUE",
            help="Header that the task can read. Repeatable.",
            http=Pairs,
            flag=list[str],
            edit="Set a header. Repeatable.",
        ),
    ] = None
    lease: Annotated[
        _Seconds | None,
        JobField(
            value="DURATION",
            help="Give the job to another worker if its worker is silent for this long, e.g. 30s.",
            http=Seconds,
        ),
    ] = None
    timeout: Annotated[
        _Seconds | None,
        JobField(
            value="DURATION",
            help="Stop an attempt that runs longer than this, e.g. 5m.",
            http=Seconds,
        ),
    ] = None
    max_attempts: Annotated[
        int | None,
        JobField(
            value="N",
            help="Give up after this many failed attempts: the job becomes a dead letter. 0 is "
            "unlimited.",
            http=Attempts,
            flag=int,
        ),
    ] = None
    max_retries: Annotated[
        int | None,
        JobField(
            value="N",
            help="Like --max-attempts, without counting the first attempt.",
            http=Attempts,
            flag=int,
        ),
    ] = None
    max_crashes: Annotated[
        int | None,
        JobField(
            value="N",
            help="Give up after the job has crashed its worker this many times.",
            http=Crashes,
            flag=int,
        ),
    ] = None
    backoff: Annotated[
        str | None,
        JobField(
            value="BACKOFF",
            help='Wait this long between attempts, e.g. "exponential(2s, max=10m)".',
            http=BackoffText,
        ),
    ] = None
    content_type: Annotated[
        str | None,
        JobField(
            value="TYPE",
            help="Media type of the payload. [default: application/json]",
            http=ContentType,
        ),
    ] = None
    after: Annotated[
        list[str] | None,
        JobField(
            value="ID",
            help="Wait until this job has ended. Repeatable.",
            http=Parents,
            flag=list[str],
            per_job=True,
        ),
    ] = None
    after_on: Annotated[
        AfterOn | None,
        JobField(
            value="ENDING",
            help="How the jobs of --after must end. [default: success]",
            http=AfterOn,
            flag=AfterOn,
            per_job=True,
        ),
    ] = None
    parent_death: Annotated[
        ParentDeath | None,
        JobField(
            value="ACTION",
            help="If a job of --after dies, cancel this job, run it anyway, or hold it "
            "until that job is retried and done. [default: cancel]",
            http=ParentDeath,
            flag=ParentDeath,
            per_job=True,
        ),
    ] = None


FIELDS: dict[str, JobField] = {
    name: get_args(hint)[1] for name, hint in get_type_hints(JobLine, include_extras=True).items()
}


class TickOptions(TypedDict, total=False):
    """Options of the job of every tick of a schedule: those of a job, without the ones that belong
    to a single job."""

    queue: str | None
    priority: int | None
    delay: Duration | None
    expires: Duration | None
    tenant: str | None
    group: str | None
    labels: Mapping[str, str] | None
    """Names and values to find the job by."""
    headers: Mapping[str, str] | None
    """Names and values that the task can read, such as a trace."""
    lease: Duration | None
    timeout: Duration | None
    max_attempts: int | None
    max_crashes: int | None
    backoff: Backoff | str | None
    to: str | None
    reroute: bool | Mapping[str, str] | Reroute | None
    """If the worker of `to` does not take the job in time, give it to any worker (True), or to one
    with these labels."""


class JobOptions(TickOptions, total=False):
    """Options of a job, for `task.using(…)`, `app.enqueue` and `app.job`. None is the same as left
    out."""

    id: str | None
    content_type: str | None
    run_at: datetime | None
    key: str | None
    key_window: Duration | None
    key_policy: KeyPolicy | None
    key_hold: KeyHold | None
    after: Iterable[Any] | None
    """Wait until these jobs have ended: handles, jobs or ids."""
    after_on: AfterOn | None
    parent_death: ParentDeath | None
