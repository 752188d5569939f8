"""Jobs in hand: lease, renew and settle."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast import newjob
from holdfast.core import checks, limits
from holdfast.core.model import Lease, LeaseRequest, Note, Queue, Renewal
from holdfast.core.verdict import Outcome, Settlement, Verdict
from holdfast.durations import to_ms
from holdfast.engines.base import Engine
from holdfast.errors import UsageError
from holdfast.reading import queues_of
from holdfast.server import portions
from holdfast.server.calls import Call
from holdfast.server.enqueuing import Refusal, check_together, desk_of
from holdfast.server.hand import Held, hand_of, read_leases
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import JobId, Json, MaybeName, QueueName, Seconds, TaskName, Token
from holdfast.server.verdicts import POLICY, VerdictBody, is_last, settlement_of, why_refused
from holdfast.views.leases import LeaseView, lease_view

Decided = Literal["complete", "retry", "bury", "release", "forward"]

_MANY = Meta(min_length=1, max_length=limits.BATCH_MAX)


class LeaseBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which jobs: of `queues` in that order, or just those with `ids`; of any task, or of `tasks`.
    `wait` is how long to wait for the first, at most as long as the server lets anybody wait.
    `lease` is the time until the deadline, else the job's or the queue's own."""

    queues: Annotated[list[QueueName], _MANY] | None = None
    ids: Annotated[list[JobId], _MANY] | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.BATCH_MAX)] = 1
    worker: MaybeName = ""
    wait: Seconds = 0
    lease: Seconds | None = None
    tasks: Annotated[list[TaskName], Meta(max_length=limits.BATCH_MAX)] | None = None


class Leased(msgspec.Struct, frozen=True):
    leases: list[LeaseView]


class RenewalBody(msgspec.Struct, forbid_unknown_fields=True):
    """`lease` is the time until the new deadline, else the job's or the queue's own. What else is
    given is kept with the job: `progress` from 0 to 1, a `checkpoint` that its next attempt gets,
    and the `output` so far, of which the head and the tail are kept."""

    id: JobId
    token: Token
    lease: Seconds | None = None
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    checkpoint: Json | UnsetType = UNSET
    output: str | None = None


class RenewBody(msgspec.Struct, forbid_unknown_fields=True):
    renewals: Annotated[list[RenewalBody], _MANY]


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """`lost`: stop working on the job. With `cancel_requested` somebody asks to stop: release it,
    and it is cancelled."""

    id: str
    outcome: Literal["renewed", "lost", "refused"]
    lease_ms: int | UnsetType = UNSET
    cancel_requested: bool | UnsetType = UNSET
    error: Refusal | UnsetType = UNSET


class Renewals(msgspec.Struct, frozen=True):
    """An answer for each, in their order."""

    renewals: list[Renewed]


class SettleBody(msgspec.Struct, forbid_unknown_fields=True):
    verdicts: Annotated[list[VerdictBody], _MANY]


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """`settled` also answers a repeat. `lost`: the lease is no longer this one, and the job goes on
    without it. `refused`: the verdict is out of bounds, names a queue that does not exist, or has a
    follow-up job that may not come in; the lease goes on. `verdict` is what was decided."""

    id: str
    outcome: Outcome
    verdict: Decided | UnsetType = UNSET
    error: Refusal | UnsetType = UNSET


class Outcomes(msgspec.Struct, frozen=True):
    """An answer for each verdict, in their order."""

    outcomes: list[Settled]


@operation("POST", "/v1/lease", needs=Scope.CONSUME, waits=True)
async def lease(call: Call, body: LeaseBody) -> Leased:
    """Take jobs to work on, waiting for the first of them if there is none. What was leased for a
    client that has left meanwhile is released."""
    request = _request(body, call.server.settings.wait_ms_max)
    leases = await portions.lease(call.engine, request, portions.sizes_of(call.app))
    if not leases:
        return Leased([])
    try:
        queues = await queues_of(call.engine)
    except BaseException:
        await portions.give_back(call.engine, leases)
        raise
    hand_of(call).keep(leases)
    return Leased([lease_view(each, queues.get(each.job.queue)) for each in leases])


@operation("POST", "/v1/renew", needs=Scope.CONSUME, repeatable=True)
async def renew(call: Call, body: RenewBody) -> Renewals:
    """Push the deadlines of leases, and keep what a run leaves behind. One that is lost or refused
    harms no other."""
    said, hand = body.renewals, hand_of(call)
    leases = await hand.leases(call.engine, ((each.id, each.token) for each in said))
    answers: list[Renewed | None] = []
    good: list[Renewal] = []
    for each in said:
        try:
            good.append(_renewal(each, leases[each.id, each.token]))
            answers.append(None)
        except UsageError as error:
            answers.append(
                Renewed(id=each.id, outcome="refused", error=Refusal(error.code, str(error)))
            )
    renewed = await call.engine.renew(good) if good else []
    hand.keep(each for each in renewed if each is not None)
    made = iter(zip(good, renewed, strict=True))
    return Renewals([each or _renewed(*next(made)) for each in answers])


@operation("POST", "/v1/settle", needs=Scope.CONSUME, repeatable=True)
async def settle(call: Call, body: SettleBody) -> Outcomes:
    """End leases. Each verdict has an outcome of its own, and repeating one is harmless."""
    said, hand = body.verdicts, hand_of(call)
    leases = await hand.leases(call.engine, ((each.id, each.token) for each in said))
    check_together([job for each in said for job in each.then or ()])
    by_policy = any(each.verdict in POLICY for each in said)
    queues = await queues_of(call.engine) if by_policy else {}
    if by_policy:
        leases |= await _last(call.engine, said, leases, queues)
    desk = await desk_of(call.app)
    answers: list[Settled | None] = []
    good: list[Settlement] = []
    for each in said:
        held = leases[each.id, each.token]
        try:
            good.append(settlement_of(each, held, queues.get(held.job.queue), desk))
            answers.append(None)
        except UsageError as error:
            answers.append(_refused(each.id, error))
    outcomes = await call.engine.settle(good) if good else []
    for settlement, outcome in zip(good, outcomes, strict=True):
        if outcome is not Outcome.REFUSED:
            hand.forget((settlement.lease.id, settlement.lease.token))
    known = await queues_of(call.engine) if Outcome.REFUSED in outcomes else {}
    made = iter(
        [
            _refused(settlement.lease.id, why_refused(settlement, known, call.caller))
            if outcome is Outcome.REFUSED
            else _settled(settlement, outcome)
            for settlement, outcome in zip(good, outcomes, strict=True)
        ]
    )
    return Outcomes([each or next(made) for each in answers])


async def give_back(call: Call, answer: Leased) -> None:
    """What was leased for somebody who left before it could be handed over."""
    held = [(each.job.id, each.token) for each in answer.leases]
    if held:
        leases = await hand_of(call).leases(call.engine, held)
        await portions.give_back(call.engine, list(leases.values()))


OPERATIONS: tuple[Operation, ...] = (dataclasses.replace(lease, undo=give_back), renew, settle)


def _request(body: LeaseBody, wait_ms_max: int) -> LeaseRequest:
    queues = body.queues or ([] if body.ids else ["default"])
    request = LeaseRequest(
        queues=tuple(dict.fromkeys(queues)),
        ids=tuple(dict.fromkeys(body.ids or ())),
        limit=body.limit,
        worker=body.worker,
        wait_ms=min(to_ms("wait", body.wait, UsageError), wait_ms_max),
        lease_ms=None if body.lease is None else to_ms("lease", body.lease, UsageError),
        tasks=None if body.tasks is None else frozenset(body.tasks),
    )
    checks.check_request(request)
    return request


def _renewal(said: RenewalBody, lease: Lease) -> Renewal:
    """UsageError: it cannot be kept."""
    lease_ms = lease.lease_ms if said.lease is None else to_ms("lease", said.lease, UsageError)
    if not limits.LEASE_MS_MIN <= lease_ms <= limits.LEASE_MS_MAX:
        raise UsageError(
            f"lease {lease_ms}ms is not {limits.LEASE_MS_MIN}ms to {limits.LEASE_MS_MAX}ms"
        )
    note = None
    if said.progress is not None or said.output is not None or said.checkpoint is not UNSET:
        note = Note(
            progress=said.progress,
            checkpoint=_checkpoint(said.checkpoint),
            output=None if said.output is None else said.output.encode(),
        )
        checks.check_note(note)
    return Renewal(lease=lease, lease_ms=lease_ms, note=note)


def _checkpoint(given: msgspec.Raw | UnsetType) -> bytes | None:
    return None if isinstance(given, UnsetType) else newjob.json_of(given, "checkpoint")


def _renewed(renewal: Renewal, lease: Lease | None) -> Renewed:
    if lease is None:
        return Renewed(id=renewal.lease.id, outcome="lost")
    return Renewed(
        id=lease.id,
        outcome="renewed",
        lease_ms=lease.lease_ms,
        cancel_requested=lease.cancel_requested,
    )


async def _last(
    engine: Engine, said: list[VerdictBody], leases: dict[Held, Lease], queues: dict[str, Queue]
) -> dict[Held, Lease]:
    """Read again what would be a dead letter: of a cancel since, the hand does not know."""
    last = []
    for each in said:
        held = (each.id, each.token)
        if is_last(each, leases[held], queues.get(leases[held].job.queue)):
            last.append(held)
    return await read_leases(engine, last) if last else {}


def _settled(settlement: Settlement, outcome: Outcome) -> Settled:
    word = _word(settlement.verdict) if outcome is Outcome.SETTLED else UNSET
    return Settled(id=settlement.lease.id, outcome=outcome, verdict=word)


def _refused(id: str, error: UsageError) -> Settled:
    return Settled(id=id, outcome=Outcome.REFUSED, error=Refusal(error.code, str(error)))


def _word(verdict: Verdict) -> Decided:
    """The tag is the word."""
    word: Decided = type(verdict).__struct_config__.tag  # type: ignore[assignment]
    return word
