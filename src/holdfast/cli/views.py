"""Jobs, queues and workers as scripts read them. A field that is here stays here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core import codec, lifecycle
from holdfast.core.causes import has_room
from holdfast.core.flow import Waits
from holdfast.core.model import Event, Failure, Job, Queue, QueueView, State
from holdfast.core.text import counted
from holdfast.core.workers import QUEUE_PREFIX
from holdfast.durations import show_at
from holdfast.errors import InvalidJob
from holdfast.worker.registry import WorkerView

COMMAND = "command"
"""The task that runs a command line; its result says how that ended."""

WEBHOOK = "webhook"
"""The task that sends a request to where its payload says."""

COUNTS = ("ready", "delayed", "blocked", "leased", "overdue", "done", "dead")
_HELD = (*COUNTS, "cancelled")


def job_view(job: Job, queue: Queue | None) -> dict[str, Any]:
    """Everything about one job that was read by `get`."""
    # What went wrong before a job was done after all is in its failures.
    wrong = () if job.state is State.DONE else job.failures
    last = wrong[-1].failure if wrong else None
    result = None if job.result is None else value_of(job.result, codec.JSON)
    return {
        "id": job.id,
        "queue": job.queue,
        "task": job.task,
        "state": str(job.state),
        "attempts": job.attempt,
        "max_attempts": lifecycle.attempts_max(queue or Queue(name=job.queue), job),
        "crashes": job.crashes,
        "priority": job.priority,
        "tenant": job.tenant,
        "key": job.key,
        "group": job.group,
        "after": list(job.after),
        "after_on": job.after_on if job.after else None,
        "parent_death": job.parent_death if job.after else None,
        "waits_for": None,
        "labels": job.labels,
        "headers": job.headers,
        "created_at": show_at(job.created_at),
        "due_at": show_at(job.due_at),
        "expires_at": _at(job.expires_at),
        "leased_at": _at(job.leased_at),
        "deadline_at": _at(job.deadline_at),
        "finished_at": _at(job.finished_at),
        "worker": job.worker,
        "cancel_requested": job.cancel_requested,
        "origin": job.origin,
        "reroute": msgspec.to_builtins(job.overrides.reroute),
        "progress": job.progress,
        "payload": value_of(job.payload, job.content_type),
        "result": result,
        "error": None if last is None else last.message,
        "reason": None if job.reason is None else str(job.reason),
        "fingerprint": job.fingerprint,
        "redrives": job.redrives,
        "exit_code": _exit_code(job, result, last),
        "output": None if job.output is None else job.output.decode(errors="replace"),
        "duration_ms": _duration_ms(job),
        "failures": [event_view(event) for event in job.failures],
    }


def waits_view(waits: Waits | None) -> dict[str, Any] | None:
    """What keeps a waiting job beside its time: open parents (the first of `parent_count`), the
    job of its group that goes first, and limits without room. None when nothing does."""
    if waits is None:
        return None
    full = [slot for slot in waits.slots if not has_room(slot)]
    if not (waits.parent_count or waits.group_head or full):
        return None
    return {
        "parents": list(waits.parents),
        "parent_count": waits.parent_count,
        "group_head": waits.group_head,
        "limits": msgspec.to_builtins(full),
    }


def event_view(event: Event) -> dict[str, Any]:
    """One row of a timeline; what went wrong in it stands beside."""
    view: dict[str, Any] = {
        "at": show_at(event.at),
        "event": str(event.kind),
        "attempt": event.attempt,
        "worker": event.by,
        "text": event.text,
    }
    failure = event.failure
    if failure is not None:
        view |= {
            "kind": str(failure.kind),
            "type": failure.type,
            "error": failure.message,
            "exit_code": failure.exit_code,
            "signal": failure.signal,
            "trace": failure.trace,
        }
    return view


def counts_view(view: QueueView) -> dict[str, Any]:
    """How a queue stands."""
    return {
        "name": view.queue.name,
        **{name: getattr(view, name) for name in _HELD},
        "oldest_age_ms": view.oldest_age_ms,
        "paused": view.queue.paused,
        "accepting": view.queue.accepting,
        "estimated": sorted(view.estimated),
    }


def worth_showing(counts: Mapping[str, Any]) -> bool:
    """Of a queue as `counts_view` has it: one of a worker's own says nothing while it is empty."""
    own = counts["name"].startswith(QUEUE_PREFIX)
    stopped = counts["paused"] or not counts["accepting"]
    return not own or stopped or any(counts[name] for name in _HELD)


def settings_view(queue: Queue) -> dict[str, Any]:
    view: dict[str, Any] = msgspec.to_builtins(queue)
    return view


def worker_view(view: WorkerView) -> dict[str, Any]:
    """What a worker says of itself, and how well it is."""
    record = view.record
    fields = {name: msgspec.to_builtins(getattr(record, name)) for name in record.__struct_fields__}
    return {
        **fields,
        "started_at": show_at(record.started_at),
        "health": str(view.health),
        "why": view.why,
        "heartbeat_age_ms": view.age_ms,
    }


def value_of(data: bytes, content_type: str) -> Any:
    """JSON as what it says; other bytes as text, or as so many bytes."""
    if content_type == codec.JSON:
        try:
            return codec.decode(data)
        except InvalidJob:
            pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return counted(len(data), "byte")


def text_of(value: Any) -> str:
    """A field of a view in one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def command_of(payload: Any) -> str:
    """What a command job runs, as it would be typed; "" for what is none."""
    import shlex

    command = payload.get("command") if isinstance(payload, Mapping) else None
    if isinstance(command, str):
        return command
    if isinstance(command, list):
        return shlex.join(str(part) for part in command)
    return ""


def _exit_code(job: Job, result: Any, last: Failure | None) -> int | None:
    """Of its last run: a command that is done has its own in its result."""
    if job.task == COMMAND and isinstance(result, Mapping):
        code = result.get("exit_code")
        return code if isinstance(code, int) else None
    return None if last is None else last.exit_code


def _duration_ms(job: Job) -> int | None:
    if job.leased_at is None or job.finished_at is None:
        return None
    return max(job.finished_at - job.leased_at, 0)


def _at(instant: int | None) -> str | None:
    return None if instant is None else show_at(instant)
