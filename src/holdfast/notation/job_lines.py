"""Job lines → jobs: a line of JSON, or flags, under defaults for all lines → a NewJob.

A field of the line itself overrides the flags, which override the stored settings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from holdfast.core import codec
from holdfast.core.backoff import Backoff
from holdfast.core.model import COMMAND_TASK, WEBHOOK_TASK, NewJob
from holdfast.core.text import show_ms
from holdfast.core.workers import TaskRecord
from holdfast.errors import InvalidJob
from holdfast.notation.job import FIELDS, JobLine, JobOptions
from holdfast.notation.options import new_id, new_job
from holdfast.notation.policies import show_backoff
from holdfast.notation.synonyms import READ_ONLY, remedy

__all__ = [
    "FIELDS",
    "JobDefaults",
    "JobLine",
    "JobSettings",
    "job_defaults",
    "json_bytes",
    "line_of",
    "make_job",
    "read_line",
]

# Fields that differ from job to job; the others are read once and cached.
_OWN = ("id", "key", "tenant", "group", "priority", "labels", "headers", "after")
_SHARED = tuple(name for name in FIELDS if name in JobOptions.__annotations__ and name not in _OWN)
# A line with one of these does not take the other from the defaults.
_INSTEAD = {
    "task": "command",
    "payload": "command",
    "command": "task",
    "cwd": "task",
    "env": "task",
    "queue": "to",
    "to": "queue",
    "delay": "run_at",
    "run_at": "delay",
    "max_attempts": "max_retries",
    "max_retries": "max_attempts",
}
_ABSENT = (None, msgspec.UNSET)
_decoder = msgspec.json.Decoder(JobLine)
_encode = msgspec.json.Encoder().encode
_decode_any = msgspec.json.Decoder().decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _CommandFields(msgspec.Struct, omit_defaults=True):
    command: str | list[str]
    cwd: str | None = None
    env: dict[str, str] | None = None


class JobSettings(Protocol):
    """The stored settings that concern new jobs, as `config.Settings` has them."""

    def value(self, name: str) -> Any: ...

    def backoff(self) -> Backoff | None: ...


class JobDefaults(msgspec.Struct, frozen=True):
    """Values of the fields that a line leaves out."""

    values: dict[str, Any]
    addressed_ttl: str | None = None
    make_id: Callable[[], str] = new_id
    by_task: dict[str, dict[str, Any]] = {}
    """The values for jobs of a task that declares options in code."""

    def of(self, line: JobLine) -> dict[str, Any]:
        """The values for one line."""
        if not self.by_task or line.command is not None or line.webhook is not None:
            return self.values
        task = line.task or self.values.get("task") or ""
        return self.by_task.get(task, self.values)


def read_line(text: bytes | str, ignored: set[str] | None = None) -> JobLine:
    """Read one JSON object. With `ignored`, fields of a printed job that the queue sets itself are
    left out and added to it. Raises InvalidJob."""
    try:
        # Decoded as text first, because msgspec does not validate the bytes of the raw payload.
        return _decoder.decode(text.decode() if isinstance(text, bytes) else text)
    except UnicodeError:
        raise InvalidJob("the job is not UTF-8") from None
    except RecursionError:
        raise InvalidJob("the job is nested too deeply") from None
    except msgspec.ValidationError as error:
        given = _decode_any(text)
        read_only = given.keys() & READ_ONLY if isinstance(given, dict) else ()
        if ignored is None or not read_only:
            raise InvalidJob(_reworded(str(error), given)) from None
        ignored |= read_only
        fields = {name: raw for name, raw in _decode_raw(text).items() if name not in read_only}
        return read_line(_encode(fields))
    except msgspec.DecodeError as error:
        raise InvalidJob(f"the job is not JSON: {error}") from None


def line_of(values: Mapping[str, Any]) -> JobLine:
    """Make a line of the values of flags. Raises InvalidJob."""
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return msgspec.convert(given, JobLine)
    except msgspec.ValidationError as error:
        raise InvalidJob(_reworded(str(error), given)) from None


def job_defaults(
    flags: JobLine,
    settings: JobSettings,
    declared: Mapping[str, TaskRecord],
    make_id: Callable[[], str] = new_id,
) -> JobDefaults:
    """The flags over the options that a task declares in code, over the stored settings."""
    backoff = settings.backoff()
    stored: dict[str, Any] = {
        "max_retries": settings.value("max-retries"),
        "max_crashes": settings.value("max-crashes"),
        "timeout": _duration(settings, "job-timeout"),
        "lease": _duration(settings, "lease"),
        "backoff": None if backoff is None else show_backoff(backoff),
    }
    if flags.max_attempts is not None:
        del stored["max_retries"]
    given = {name: getattr(flags, name) for name in FIELDS}
    stored = {name: value for name, value in stored.items() if value not in _ABSENT}
    given = {name: value for name, value in given.items() if value not in _ABSENT}
    by_task = {}
    for task, record in declared.items():
        options = _declared_values(record)
        instead = {_INSTEAD.get(name) for name in options}
        kept = {name: value for name, value in stored.items() if name not in instead}
        given_instead = {_INSTEAD.get(name) for name in given}
        options = {name: value for name, value in options.items() if name not in given_instead}
        by_task[task] = {**kept, **options, **given}
    return JobDefaults({**stored, **given}, _duration(settings, "addressed-ttl"), make_id, by_task)


def _declared_values(record: TaskRecord) -> dict[str, Any]:
    """The fields of a line that a task declares in code."""
    own = record.overrides
    values: dict[str, Any] = {
        "queue": record.queue,
        "priority": record.priority,
        "expires": _shown(record.expires_ms),
        "lease": _shown(own.lease_ms),
        "timeout": _shown(own.timeout_ms),
        "max_attempts": own.max_attempts,
        "max_crashes": own.max_crashes,
        "backoff": None if own.backoff is None else show_backoff(own.backoff),
    }
    return {name: value for name, value in values.items() if value is not None}


def make_job(line: JobLine, defaults: JobDefaults) -> NewJob:
    """The job, ready to enqueue. Raises InvalidJob."""
    values = defaults.of(line)
    missing = [
        name
        for name in values
        if getattr(line, name) in _ABSENT and getattr(line, _INSTEAD.get(name, name)) in _ABSENT
    ]
    for name in missing:
        setattr(line, name, values[name])
    options = {name: value for name in _SHARED if (value := getattr(line, name)) is not None}
    if line.max_retries is not None:
        if line.max_attempts is not None:
            raise InvalidJob(
                "give either max_attempts or max_retries (which is one less), not both"
            )
        if line.max_retries < 0:
            raise InvalidJob(f"max_retries {line.max_retries} must not be negative")
        options["max_attempts"] = line.max_retries + 1
    at_once = line.delay is None and line.run_at is None
    if line.to is not None and defaults.addressed_ttl is not None and at_once:
        options.setdefault("expires", defaults.addressed_ttl)
    task, payload = _task_and_payload(line)
    # The delay until `run_at` changes constantly, and a dict is not hashable.
    cacheable = line.run_at is None and not isinstance(line.reroute, dict)
    make = _template if cacheable else _template.__wrapped__
    own = {name: value for name in _OWN if (value := getattr(line, name)) is not None}
    if "id" not in own:
        own["id"] = defaults.make_id()
    if "after" in own:
        own["after"] = tuple(own["after"])
    return replace(make(task, tuple(options.items())), payload=payload, **own)


def json_bytes(value: msgspec.Raw | msgspec.UnsetType, what: str = "payload") -> bytes:
    """The bytes of a JSON value, validated; `null` if it is missing. Raises InvalidJob."""
    if isinstance(value, msgspec.UnsetType):
        return b"null"
    raw = bytes(value)
    _decoded(raw, what)
    return raw


@functools.lru_cache(maxsize=256)
def _template(task: str, options: tuple[tuple[str, Any], ...]) -> NewJob:
    """A job with the options that most lines have in common, read once for all of them."""
    given: Any = {"id": "template", "content_type": codec.JSON, **dict(options)}
    return new_job(task, b"", given)


def _task_and_payload(line: JobLine) -> tuple[str, bytes]:
    if line.webhook is not None:
        if line.task is not None or line.command is not None:
            raise InvalidJob("a job has either a webhook, or a task or a command; not both")
        line.task, line.payload = WEBHOOK_TASK, _request(line.webhook, line.payload)
    if line.command is not None:
        if line.task is not None or line.payload is not msgspec.UNSET:
            raise InvalidJob("a job has either a command, or a task and its payload; not both")
        if not line.command:
            raise InvalidJob("the command is empty")
        try:
            return COMMAND_TASK, _encode(_CommandFields(line.command, line.cwd, line.env))
        except UnicodeError:
            raise InvalidJob("the command is not UTF-8") from None
    if line.task is None:
        raise InvalidJob('the job has neither a "command" nor a "task": give one of them')
    if line.cwd is not None or line.env is not None:
        raise InvalidJob("cwd and env apply only to commands: a task has a payload")
    if line.content_type is not None and line.content_type != codec.JSON:
        return line.task, _text_bytes(line.payload, line.content_type)
    return line.task, json_bytes(line.payload)


def _request(url: str, body: msgspec.Raw | msgspec.UnsetType) -> msgspec.Raw:
    request: dict[str, Any] = {"url": url}
    if not isinstance(body, msgspec.UnsetType):
        request["body"] = body
    return msgspec.Raw(_encode(request))


def _text_bytes(payload: msgspec.Raw | msgspec.UnsetType, content_type: str) -> bytes:
    if isinstance(payload, msgspec.UnsetType):
        return b"null"
    value = _decoded(bytes(payload))
    if not isinstance(value, str):
        raise InvalidJob(f"a payload of type {content_type} must be a JSON string")
    return value.encode()


def _decoded(raw: bytes, what: str = "payload") -> Any:
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"the {what} is not JSON: {error}") from None


def _reworded(text: str, given: Any) -> str:
    """An error of msgspec with the name of the field, and its value if that is a text."""
    problem, _, where = text.replace("`", "").partition(" - at $")
    if "unknown field" in problem:
        wrong = problem.rpartition(" ")[2]
        found = remedy(wrong, FIELDS) or f"a job has {', '.join(FIELDS)}"
        return f"unknown field {wrong}: {found}"
    name = where.lstrip(".")
    if name == "run_at":
        example = "expected a date and time such as 2030-01-31T12:00:00Z"
        return f'run_at "{str(given["run_at"])[:40]}": {example}'
    problem = problem.replace(" | null", "")
    return f"{name or 'the job'}: {problem[:1].lower()}{problem[1:]}"


def _duration(settings: JobSettings, name: str) -> str | None:
    return _shown(settings.value(name))


def _shown(ms: int | None) -> str | None:
    return None if ms is None else show_ms(ms)
