"""What people do to a job that is named."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from holdfast import newjob
from holdfast.acting import FINISHED, Changes, act_on, edit_job, read
from holdfast.core import checks
from holdfast.core.model import Job, State
from holdfast.core.verdict import Amendment, Cancel, Delete, Expedite, Redrive
from holdfast.durations import to_ms
from holdfast.engines.base import Engine
from holdfast.errors import UsageError
from holdfast.reading import queues_of
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import JobId, Json, Name, Pairs, Priority, QueueName, Seconds, Text
from holdfast.upkeep.rerouting import reroute as reroute_one
from holdfast.views.jobs import JobView, job_view
from holdfast.views.values import raw_of
from holdfast.worker.registry import Workers


class CancelBody(msgspec.Struct, forbid_unknown_fields=True):
    """`text` says why, for the timeline."""

    text: Text = ""


class RetryBody(msgspec.Struct, forbid_unknown_fields=True):
    delay: Seconds = 0
    text: Text = ""


class RerouteBody(msgspec.Struct, forbid_unknown_fields=True):
    """`to` names the worker; with `labels` one is chosen that has them, else one that has those
    that the job itself asks for. It has as long as it had, or until it `expires`."""

    to: Name | None = None
    labels: Pairs | None = None
    expires: Seconds | None = None


class DeleteQuery(msgspec.Struct, forbid_unknown_fields=True):
    """With `force` also a job that runs, whose lease is lost."""

    force: bool = False


class ChangesBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is left out or null stays, but for the payload, which may be null. Labels and headers
    are added to those that are there."""

    payload: Json | UnsetType = UNSET
    priority: Priority | None = None
    expires: Seconds | None = None
    delay: Seconds | None = None
    queue: QueueName | None = None
    labels: Pairs | None = None
    headers: Pairs | None = None
    text: Text = ""


class Rerouted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    worker: str


@operation("POST", "/v1/jobs/{id}/cancel", needs=Scope.OPERATE)
async def cancel_job(call: Call, id: JobId, body: CancelBody) -> JobView:
    """Cancel a job that waits, or ask one that runs to stop."""
    act = Cancel(by=call.caller.name, text=body.text)
    await act_on(call.engine, id, act, (State.WAITING, State.LEASED))
    job = await read(call.engine, id)
    if job.state is State.LEASED and job.worker:
        # Its worker hears of it at its next renewal: let that be now.
        await Workers(call.engine).nudge(job.worker)
    return await _view(call.engine, job)


@operation("POST", "/v1/jobs/{id}/retry", needs=Scope.OPERATE)
async def retry_job(call: Call, id: JobId, body: RetryBody) -> JobView:
    """Run a dead, cancelled or done job again, with its attempts at zero."""
    delay_ms = to_ms("delay", body.delay, UsageError)
    act = Redrive(by=call.caller.name, text=body.text, delay_ms=delay_ms)
    await act_on(call.engine, id, checked(act), FINISHED)
    return await _view(call.engine, await read(call.engine, id))


@operation("POST", "/v1/jobs/{id}/expedite", needs=Scope.OPERATE, repeatable=True)
async def expedite_job(call: Call, id: JobId) -> JobView:
    """Make a job that waits due now, in front of all others."""
    await act_on(call.engine, id, Expedite(by=call.caller.name), (State.WAITING,))
    return await _view(call.engine, await read(call.engine, id))


@operation("POST", "/v1/jobs/{id}/reroute", needs=Scope.OPERATE)
async def reroute_job(call: Call, id: JobId, body: RerouteBody) -> Rerouted:
    """Give a job that waits for one worker to another: without `to` to the healthiest, then the
    least loaded one that knows its task."""
    if body.to is not None and body.labels:
        raise UsageError("to names the worker, labels let one be chosen: give one of them")
    await read(call.engine, id)
    name = await reroute_one(
        call.engine,
        id,
        to=body.to,
        labels=body.labels,
        expires_ms=ms_of("expires", body.expires),
        by=call.caller.name,
    )
    return Rerouted(id=id, worker=name)


@operation("PATCH", "/v1/jobs/{id}", needs=Scope.OPERATE)
async def edit(call: Call, id: JobId, body: ChangesBody) -> JobView:
    """Change a job that waits or is dead."""
    changes = Changes(
        payload=payload_of(body.payload),
        priority=body.priority,
        expires_ms=ms_of("expires", body.expires),
        delay_ms=ms_of("delay", body.delay),
        queue=body.queue,
        labels=body.labels,
        headers=body.headers,
        text=body.text,
    )
    await edit_job(call.engine, id, changes, call.caller.name)
    return await _view(call.engine, await read(call.engine, id))


@operation("DELETE", "/v1/jobs/{id}", needs=Scope.OPERATE, status=204)
async def delete_job(call: Call, id: JobId, query: DeleteQuery) -> None:
    """Remove a job for good."""
    states = tuple(state for state in State if query.force or state is not State.LEASED)
    await act_on(call.engine, id, Delete(force=query.force), states)


OPERATIONS: tuple[Operation, ...] = (
    cancel_job,
    retry_job,
    expedite_job,
    reroute_job,
    edit,
    delete_job,
)


def checked(act: Amendment) -> Amendment:
    checks.check_amendment(act)
    return act


def payload_of(given: msgspec.Raw | UnsetType) -> bytes | None:
    return None if isinstance(given, UnsetType) else newjob.json_of(given)


def ms_of(name: str, given: float | str | None) -> int | None:
    return None if given is None else to_ms(name, given, UsageError)


async def _view(engine: Engine, job: Job) -> JobView:
    return job_view(job, (await queues_of(engine)).get(job.queue), value=raw_of)
