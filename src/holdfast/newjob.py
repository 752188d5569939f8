"""What people write about a new job, as JSON or as flags, under the same names → a NewJob.

What a job says of itself wins over the flags, which are for all lines; both win over settings.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.backoffs import show_backoff
from holdfast.config import Settings
from holdfast.core import codec
from holdfast.core.model import NewJob
from holdfast.durations import show_ms
from holdfast.errors import InvalidJob
from holdfast.options import JobOptions, new_id, new_job
from holdfast.views.values import COMMAND, WEBHOOK


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """Everything a job can carry; None is the same as left out."""

    task: str | None = None
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    command: str | list[str] | None = None
    webhook: str | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    id: str | None = None
    queue: str | None = None
    to: str | None = None
    reroute: bool | dict[str, str] | None = None
    priority: int | None = None
    delay: str | int | float | None = None
    run_at: datetime | None = None
    expires: str | int | float | None = None
    key: str | None = None
    key_window: str | int | float | None = None
    key_policy: Literal["keep", "replace", "merge"] | None = None
    tenant: str | None = None
    group: str | None = None
    labels: dict[str, str] | None = None
    headers: dict[str, str] | None = None
    lease: str | int | float | None = None
    timeout: str | int | float | None = None
    max_attempts: int | None = None
    max_retries: int | None = None
    max_crashes: int | None = None
    backoff: str | None = None
    content_type: str | None = None
    after: list[str] | None = None
    after_on: Literal["success", "death", "either"] | None = None
    parent_death: Literal["cancel", "run", "hold"] | None = None


class _Command(msgspec.Struct, omit_defaults=True):
    command: str | list[str]
    cwd: str | None = None
    env: dict[str, str] | None = None


FIELDS = Line.__struct_fields__
# These stay as they are written; what the others mean is the same for many jobs.
_OWN = ("id", "key", "tenant", "group", "priority", "labels", "headers", "after")
_SHAPE = tuple(name for name in FIELDS if name in JobOptions.__annotations__ and name not in _OWN)
# A job that says one of these by itself does not take the other from the flags or settings.
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
_decoder = msgspec.json.Decoder(Line)
_encode = msgspec.json.Encoder().encode
_check_json = msgspec.json.Decoder().decode


def read(text: bytes | str) -> Line:
    """One JSON object. As text first, because raw bytes inside are not looked at otherwise."""
    try:
        return _decoder.decode(text.decode() if isinstance(text, bytes) else text)
    except UnicodeError:
        raise InvalidJob("it is not UTF-8") from None
    except RecursionError:
        raise InvalidJob("it is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise InvalidJob(_said(str(error))) from None
    except msgspec.DecodeError as error:
        raise InvalidJob(f"it is not JSON: {error}") from None


def from_values(values: Mapping[str, Any]) -> Line:
    """Of flags, which are typed already but for instants."""
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return msgspec.convert(given, Line)
    except msgspec.ValidationError as error:
        raise InvalidJob(_said(str(error))) from None


class Base(msgspec.Struct, frozen=True):
    """What holds for every job that does not say otherwise."""

    values: dict[str, Any]
    addressed_ttl: str | None = None
    make_id: Callable[[], str] = new_id


def base_of(flags: Line, settings: Settings, make_id: Callable[[], str] = new_id) -> Base:
    """The settings, and the flags over them."""
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
    said = {name: getattr(flags, name) for name in FIELDS}
    both = [*stored.items(), *said.items()]
    values = {name: value for name, value in both if value not in _ABSENT}
    return Base(values, _duration(settings, "addressed-ttl"), make_id)


def make(line: Line, base: Base) -> NewJob:
    """The job, ready to enqueue; what is wrong with it is raised as InvalidJob."""
    unsaid = [
        name
        for name in base.values
        if getattr(line, name) in _ABSENT and getattr(line, _INSTEAD.get(name, name)) in _ABSENT
    ]
    for name in unsaid:
        setattr(line, name, base.values[name])
    options = {name: value for name in _SHAPE if (value := getattr(line, name)) is not None}
    if line.max_retries is not None:
        if line.max_attempts is not None:
            raise InvalidJob("a job has max_attempts or max_retries, which is one less; not both")
        if line.max_retries < 0:
            raise InvalidJob(f"max_retries {line.max_retries} is below 0")
        options["max_attempts"] = line.max_retries + 1
    at_once = line.delay is None and line.run_at is None
    if line.to is not None and base.addressed_ttl is not None and at_once:
        options.setdefault("expires", base.addressed_ttl)
    task, payload = _content(line)
    known = line.run_at is None and not isinstance(line.reroute, dict)
    shape = _shape if known else _shape.__wrapped__
    own = {name: value for name in _OWN if (value := getattr(line, name)) is not None}
    if "id" not in own:
        own["id"] = base.make_id()
    if "after" in own:
        own["after"] = tuple(own["after"])
    return replace(shape(task, tuple(options.items())), payload=payload, **own)


@functools.lru_cache(maxsize=256)
def _shape(task: str, options: tuple[tuple[str, Any], ...]) -> NewJob:
    """Lines mostly differ in little: what they have in common is looked at once. An instant is
    not kept, because how far off it is changes."""
    return new_job(task, b"", {"content_type": codec.JSON, **dict(options)})  # type: ignore[typeddict-item]


def _content(line: Line) -> tuple[str, bytes]:
    if line.webhook is not None:
        if line.task is not None or line.command is not None:
            raise InvalidJob("a job has either a webhook, or a task or a command; not both")
        line.task, line.payload = WEBHOOK, _hook(line.webhook, line.payload)
    if line.command is not None:
        if line.task is not None or line.payload is not msgspec.UNSET:
            raise InvalidJob("a job has either a command, or a task and its payload; not both")
        if not line.command:
            raise InvalidJob("the command is empty")
        try:
            return COMMAND, _encode(_Command(line.command, line.cwd, line.env))
        except UnicodeError:
            raise InvalidJob("the command is not UTF-8") from None
    if line.task is None:
        raise InvalidJob('it has neither a "command" nor a "task": give one of them')
    if line.cwd is not None or line.env is not None:
        raise InvalidJob("cwd and env are for commands: a task has a payload")
    if line.content_type is not None and line.content_type != codec.JSON:
        return line.task, _text(line.payload, line.content_type)
    return line.task, json_of(line.payload)


def json_of(value: msgspec.Raw | msgspec.UnsetType, what: str = "payload") -> bytes:
    """The bytes of JSON, which were not looked at when the line was read."""
    if isinstance(value, msgspec.UnsetType):
        return b"null"
    raw = bytes(value)
    _read(raw, what)
    return raw


def _text(payload: msgspec.Raw | msgspec.UnsetType, content_type: str) -> bytes:
    if isinstance(payload, msgspec.UnsetType):
        return b"null"
    value = _read(bytes(payload))
    if not isinstance(value, str):
        raise InvalidJob(f"a payload of type {content_type} is given as a text")
    return value.encode()


def _read(raw: bytes, what: str = "payload") -> Any:
    try:
        return _check_json(raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"the {what} cannot be read as JSON: {error}") from None


def _hook(url: str, body: msgspec.Raw | msgspec.UnsetType) -> msgspec.Raw:
    """Its payload is the body of the request."""
    hook: dict[str, Any] = {"url": url}
    if not isinstance(body, msgspec.UnsetType):
        hook["body"] = body
    return msgspec.Raw(_encode(hook))


def _said(text: str) -> str:
    told, _, where = text.replace("`", "").partition(" - at $")
    if "unknown field" in told:
        wrong = told.rpartition(" ")[2]
        close = difflib.get_close_matches(wrong, FIELDS, 1)
        remedy = f"did you mean {close[0]}?" if close else f"a job has {', '.join(FIELDS)}"
        return f"{told.replace('Object contains', 'it has an')}; {remedy}"
    return f"{where.lstrip('.') or 'it'}: {told}"


def _duration(settings: Settings, name: str) -> str | None:
    ms = settings.value(name)
    return None if ms is None else show_ms(ms)
