"""Flags that several commands share: jobs and filters, confirmation, and the fields of a job."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import msgspec
from cyclopts import Parameter

from holdfast.cli.help_pages import program
from holdfast.cli.output import Declined
from holdfast.core import codec
from holdfast.core.model import JobFilter, Reason
from holdfast.core.text import printable
from holdfast.engines.registry import open_cloudwatch
from holdfast.errors import InvalidJob, UsageError
from holdfast.notation import job_lines
from holdfast.notation.durations import to_ms
from holdfast.notation.filters import StateWord, chosen_states, instant, pairs
from holdfast.notation.job import FIELDS, JobField
from holdfast.notation.synonyms import remedy
from holdfast.ops.gates import broker_urls
from holdfast.ops.jobs import amend
from holdfast.process import LogFormat, LogLevel


def option(value: str, help: str, *names: str) -> Parameter:
    """A flag with a value; `value` is its kind, such as DURATION. It has no --no- form."""
    return Parameter(name=list(names) or None, metavar=value, help=help, negative=())


def switch(help: str, *names: str) -> Parameter:
    """A flag without a value and without a --no- form."""
    return Parameter(name=list(names) or None, help=help, negative=())


JobId = Annotated[str, Parameter(help="Id of the job.")]
JobIds = Annotated[list[str], Parameter(help="Ids of the jobs.", negative=())]
States = Annotated[
    list[StateWord] | None,
    option(
        "STATE...",
        "Only jobs in this state. Repeatable. A job that waits for a retry counts as failed.",
    ),
]
Limit = Annotated[
    int | None, option("N", "Show at most this many. [default: 100, or 1000 with --json]")
]
After = Annotated[
    int | None, option("N", "Continue after this position, which the previous list printed.")
]

Yes = Annotated[bool, switch("Do not ask for confirmation.", "--yes", "-y")]
DryRun = Annotated[bool, switch("Only print what would be done.")]
AllDead = Annotated[bool, switch("Select all dead letters.")]
Archive = Annotated[
    Path | None, option("PATH", "Append finished jobs to this file before deleting them.")
]
Upkeep = Annotated[
    bool,
    Parameter(
        help="Also run upkeep, which recovers jobs of dead workers, runs schedules and deletes old"
        " jobs."
    ),
]
BrokerUrls = Annotated[
    list[str] | None,
    option(
        "NAME=URL...",
        "Run the gates of this broker; HOLDFAST_BROKER_NAME=URL keeps its password off the command"
        " line. Repeatable.",
    ),
]
LogFormatFlag = Annotated[
    LogFormat | None, option("FORMAT", "Write log lines as text or as JSON. [default: text]")
]
LogLevelFlag = Annotated[
    LogLevel | None, option("LEVEL", "Log messages of this level and above. [default: info]")
]
CloudWatch = Annotated[
    str | None,
    option(
        "NAMESPACE",
        "Publish Ready, OldestAge and DesiredWorkers of each queue in this CloudWatch namespace,"
        " e.g. Holdfast.",
    ),
]


def cloudwatch_namespace(given: str | None, *, upkeep: bool) -> str | None:
    """The namespace of --cloudwatch. Raises UsageError or ConfigError."""
    if given is not None:
        if not upkeep:
            raise UsageError("--cloudwatch needs upkeep, which publishes: leave out --no-upkeep")
        open_cloudwatch(given)
    return given


def urls_of_brokers(given: list[str] | None, *, upkeep: bool = True) -> dict[str, str]:
    """The URLs of brokers, from --broker and from the environment. Raises ConfigError."""
    if given and not upkeep:
        raise UsageError("--broker needs upkeep, which runs the gates: leave out --no-upkeep")
    return broker_urls(given or (), os.environ)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class FilterFlags:
    """Flags that select jobs; a job must match all of them."""

    queue: Annotated[str | None, option("NAME", "Only jobs of this queue.")] = None
    task: Annotated[str | None, option("NAME", "Only jobs of this task.")] = None
    tenant: Annotated[str | None, option("NAME", "Only jobs of this tenant.")] = None
    group: Annotated[str | None, option("NAME", "Only jobs of this group.")] = None
    key: Annotated[str | None, option("KEY", "Only jobs with this key.")] = None
    worker: Annotated[str | None, option("NAME", "Only jobs whose last worker was this one.")] = (
        None
    )
    reason: Annotated[Reason | None, option("REASON", "Only jobs that died for this reason.")] = (
        None
    )
    fingerprint: Annotated[
        str | None, option("ID", "Only dead letters of this group; see dlq groups.")
    ] = None
    parent: Annotated[
        str | None, option("ID", "Only jobs that were enqueued to run after this one.")
    ] = None
    label: Annotated[
        list[str] | None, option("NAME=VALUE...", "Only jobs with this label. Repeatable.")
    ] = None
    since: Annotated[
        str | None,
        option("TIME", "Only jobs enqueued since then, e.g. 1h or 2026-01-31T08:00:00Z."),
    ] = None
    before: Annotated[
        str | None, option("TIME", "Only jobs enqueued before then, in the format of --since.")
    ] = None
    search: Annotated[
        str | None, option("TEXT", "Only jobs with this text in their id, task, key or tenant.")
    ] = None

    def wanted(self, state: Iterable[str] | None = None) -> JobFilter:
        """The filter, restricted to these states."""
        states, waiting = chosen_states(state)
        return JobFilter(
            queue=self.queue,
            states=states,
            waiting=waiting,
            task=self.task,
            tenant=self.tenant,
            group=self.group,
            key=self.key,
            worker=self.worker,
            reason=self.reason,
            fingerprint=self.fingerprint,
            parent=self.parent,
            labels=pairs("--label", self.label),
            search=self.search,
            created_from=instant("--since", self.since),
            created_before=instant("--before", self.before),
        )


NO_FILTER = FilterFlags()


def _fields(names: Iterable[str], *, editing: bool = False) -> Any:
    """A dataclass with a flag for each of these fields of a job."""
    return make_dataclass(
        "_JobFields",
        [(name, _flag(name, FIELDS[name], editing=editing), None) for name in names],
        frozen=True,
        slots=True,
    )


def _flag(name: str, field: JobField, *, editing: bool) -> Any:
    is_list = get_origin(field.flag) is list
    value = f"{field.value}..." if is_list else field.value
    names = (f"--{name}", f"--{name.removesuffix('s')}") if name in ("labels", "headers") else ()
    parameter = option(value, field.edit if editing else field.help, *names[editing:])
    return Annotated[field.flag | None, parameter]


if TYPE_CHECKING:

    class _JobFields:
        def __getattr__(self, name: str) -> Any: ...

    _TickFields = _JobFields
    _EditFields = _JobFields
else:
    _JobFields = _fields(FIELDS)
    _TickFields = _fields(name for name in FIELDS if not FIELDS[name].per_job)
    _EditFields = _fields((name for name in FIELDS if FIELDS[name].edit), editing=True)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class JobFlags(_JobFields):
    """The fields of a new job as flags."""

    def line(self) -> job_lines.JobLine:
        """The job as a line. Raises InvalidJob."""
        return _line(self)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class TickFlags(_TickFields):
    """The fields of a schedule's job, without those that belong to a single job, such as its id."""

    def line(self) -> job_lines.JobLine:
        """The job as a line. Raises InvalidJob."""
        return _line(self)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class EditFlags(_EditFields):
    """The fields of a job that can be changed while it waits or is dead."""

    def changes(self) -> amend.JobChanges:
        """The changes to make. Raises InvalidJob or UsageError."""
        return amend.JobChanges(
            payload=None if self.payload is None else _json_payload(self.payload),
            priority=self.priority,
            expires_ms=None if self.expires is None else to_ms("--expires", self.expires),
            delay_ms=None if self.delay is None else to_ms("--delay", self.delay, UsageError),
            queue=self.queue,
            labels=pairs("--label", self.labels),
            headers=pairs("--header", self.headers),
        )


def unknown_flag(flag: str, known: Iterable[str], *command: str) -> str:
    """The error for a flag that a command does not have."""
    wrong = flag.partition("=")[0]
    names = {name.lstrip("-").replace("-", "_"): name for name in known}
    found = remedy(wrong.lstrip("-").replace("-", "_"), names, shape="--{}").replace("_", "-")
    return f'unknown option "{wrong[:80]}": ' + (
        found or f'see "{" ".join((program(), *command))} --help"'
    )


def with_create_command(text: str) -> str:
    """Replace the library's remedy, to declare the queue, by the command that creates it."""
    named = re.search(r'queue "?([\w.-]+)"? does not exist(?=: .*declare it first)', text)
    if named is None:
        return text
    create = f"{program()} queue create"
    return (
        f'{text[: named.end()]}: create it with "{create} {named[1]}", or every queue on first use'
        f' with "{create} --auto"'
    )


def confirm(question: str, *, yes: bool) -> None:
    """Ask at the terminal, unless --yes was given. Without a terminal --yes is required. The
    question goes to standard error, as standard output is for results.
    """
    if yes:
        return
    if not can_prompt():
        raise UsageError(f"{question} There is no terminal to confirm it: give --yes")
    print(f"{printable(question, one_line=True)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("not confirmed: nothing was changed")


def can_prompt() -> bool:
    """True if a person can answer at the terminal."""
    return bool(sys.stdin and sys.stdin.isatty())


def archive_path(path: Path | None) -> str | None:
    """The absolute path of --archive. A missing folder is refused now, not when upkeep runs."""
    if path is not None and not path.absolute().parent.is_dir():
        folder = path.absolute().parent
        raise UsageError(f"--archive {path}: there is no folder {folder}; create it first")
    return None if path is None else str(path.absolute())


def _line(flags: Any) -> job_lines.JobLine:
    values: dict[str, Any] = asdict(flags)
    for name in ("env", "labels", "headers"):
        values[name] = _pairs(name, values[name])
    values["reroute"] = flags.reroute == ["any"] or _pairs("reroute", flags.reroute)
    payload = values.pop("payload")
    try:
        line = job_lines.line_of(values)
    except InvalidJob as error:
        name, _, problem = str(error).partition(" ")
        flag = f"--{name.replace('_', '-')}" if name.rstrip(":") in FIELDS else name
        raise InvalidJob(f"{flag} {problem}") from None
    if payload is not None:
        is_text = flags.content_type not in (None, codec.JSON)
        line.payload = msgspec.Raw(msgspec.json.encode(payload) if is_text else payload)
    return line


def _pairs(name: str, given: list[str] | None) -> dict[str, str] | None:
    if not given:
        return None
    split = [text.partition("=") for text in given]
    for key, equals, value in split:
        if not key or not equals:
            raise InvalidJob(f'--{name} "{(key + value)[:80]}": expected NAME=VALUE')
    return {key: value for key, _, value in split}


def _json_payload(text: str) -> bytes:
    try:
        return codec.encode(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"the payload is not JSON: {error}") from None
