"""`holdfast enqueue` and `holdfast job show`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.app import Holdfast
from holdfast.cli.output import COMMON, Common, print_json, printable
from holdfast.core import codec, lifecycle
from holdfast.core.model import Job, Queue, Receipt
from holdfast.core.timeline import timeline
from holdfast.durations import show_at
from holdfast.errors import InvalidJob, UsageError
from holdfast.options import JobOptions


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class NewJobFlags:
    """What the command line can say about a job."""

    queue: Annotated[str, Parameter(help="The queue to put it in.")] = "default"
    id: Annotated[str | None, Parameter(help="An id of your own; a known one adds nothing.")] = None
    priority: Annotated[int | None, Parameter(help="-100 to 100, higher first.")] = None
    delay: Annotated[str | None, Parameter(help="Not before so long from now: 10m.")] = None
    expires: Annotated[str | None, Parameter(help="Dead if not started by then: 1h.")] = None
    key: Annotated[str | None, Parameter(help="Once-only: a key still held adds nothing.")] = None
    tenant: Annotated[str | None, Parameter(help="Whose it is.")] = None
    max_attempts: Annotated[int | None, Parameter(help="Runs in all; 0 is unlimited.")] = None

    def options(self) -> JobOptions:
        return {
            "queue": self.queue,
            "id": self.id,
            "priority": self.priority,
            "delay": self.delay,
            "expires": self.expires,
            "key": self.key,
            "tenant": self.tenant,
            "max_attempts": self.max_attempts,
        }


_FLAGS = NewJobFlags()


def enqueue(
    *,
    task: Annotated[str, Parameter(help="The name of the code that does it.")],
    payload: Annotated[str, Parameter(help="JSON.")] = "null",
    flags: NewJobFlags = _FLAGS,
    common: Common = COMMON,
) -> None:
    """Put a job in a queue."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"the payload is not JSON: {error}") from None
    receipt = asyncio.run(_enqueue(common, task, value, flags))
    if common.json:
        print_json({"id": receipt.id, "status": receipt.status})
    else:
        there = "" if receipt.status == "new" else " (it was there already)"
        print(f"{printable(receipt.id, one_line=True)}{there}")


def show(id: str, /, *, common: Common = COMMON) -> None:
    """Show one job and what happened to it."""
    job, queue = asyncio.run(_read(common, id))
    view = as_json(job, queue)
    if common.json:
        print_json(view)
        return
    for name, value in view.items():
        if value is not None and name not in ("failures", "output"):
            print(f"{name:13} {printable(_text(value), one_line=True)}")
    print("timeline")
    for event in timeline(job):
        told = [event.text, event.failure.message if event.failure else ""]
        text = ": ".join(filter(None, told))
        by = f" by {event.by}" if event.by else ""
        print(printable(f"  {show_at(event.at)} {event.kind}{by} {text}".rstrip(), one_line=True))
    if job.output:
        print("output")
        print(printable(job.output.decode(errors="replace")))


async def _enqueue(common: Common, task: str, value: Any, flags: NewJobFlags) -> Receipt:
    async with Holdfast(common.url) as app:
        return await app.enqueue(task, value, **flags.options())


async def _read(common: Common, id: str) -> tuple[Job, Queue]:
    async with Holdfast(common.url) as app:
        job = await app.get(id)
        if job is None:
            raise UsageError(f"no job has the id {id[:128]!r}")
        views = await app.queues(counts=False)
        known = (view.queue for view in views if view.queue.name == job.queue)
        return job, next(known, Queue(name=job.queue))


def as_json(job: Job, queue: Queue) -> dict[str, Any]:
    """The fields that scripts may rely on."""
    last = job.failures[-1].failure if job.failures else None
    ran = job.leased_at is not None and job.finished_at is not None
    return {
        "id": job.id,
        "queue": job.queue,
        "task": job.task,
        "state": str(job.state),
        "attempts": job.attempt,
        "max_attempts": lifecycle.attempts_max(queue, job),
        "priority": job.priority,
        "created_at": show_at(job.created_at),
        "due_at": show_at(job.due_at),
        "expires_at": None if job.expires_at is None else show_at(job.expires_at),
        "finished_at": None if job.finished_at is None else show_at(job.finished_at),
        "worker": job.worker,
        "payload": _value(job.payload, job.content_type),
        "result": None if job.result is None else _value(job.result, codec.JSON),
        "error": None if last is None else last.message,
        "reason": None if job.reason is None else str(job.reason),
        "exit_code": None if last is None else last.exit_code,
        "output": None if job.output is None else job.output.decode(errors="replace"),
        "duration_ms": (job.finished_at or 0) - (job.leased_at or 0) if ran else None,
        "failures": [
            {
                "at": show_at(event.at),
                "attempt": event.attempt,
                "worker": event.by,
                "kind": str(event.failure.kind),
                "error": event.failure.message,
            }
            for event in job.failures
            if event.failure is not None
        ],
    }


def _value(data: bytes, content_type: str) -> Any:
    """JSON as what it says; other bytes as text, or as so many bytes."""
    if content_type == codec.JSON:
        try:
            return codec.decode(data)
        except InvalidJob:
            pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"{len(data)} bytes"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
