"""An engine restricted to what one caller may do and see: scopes, prefix, command jobs, quotas and
values that are hidden.

REST and the remote engine's verbs both use it, so no handler checks permissions itself. Jobs and
queues outside the prefix do not exist for the caller; forbidden acts raise Forbidden.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from holdfast.core.model import (
    Flow,
    Job,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Page,
    Queue,
    QueueView,
    Receipt,
    Record,
    Renewal,
    State,
    Tally,
    TallyBy,
    Waits,
)
from holdfast.core.verdict import (
    Amendment,
    Complete,
    Delete,
    Move,
    Outcome,
    Release,
    Settlement,
)
from holdfast.engines.base import ANY, Engine, Expired, Known, Overdue, Saved
from holdfast.engines.extras import Ability, Examinable, Examination, extra, find_rows
from holdfast.engines.wrapper import Wrapper
from holdfast.errors import Forbidden, HoldfastError, OutcomeUnknown, ReadOnly
from holdfast.ops import audit
from holdfast.ops.audit import Audit, AuditEntry
from holdfast.process import wall_ms
from holdfast.server.access.caller import Caller, Scope, missing_scope
from holdfast.server.access.permissions import (
    RecordPermissions,
    VisibleQueues,
    changes_only_task_limits,
    is_worker_cancel,
)
from holdfast.server.access.quotas import Charged, QuotaEnforcer
from holdfast.server.access.redaction import REDACTED_KINDS, Redaction, RedactionRules
from holdfast.server.http import bounded_reply

Result = TypeVar("Result")

_PRODUCE, _CONSUME, _OPERATE = Scope.PRODUCE, Scope.CONSUME, Scope.OPERATE
_OBSERVE = Scope.OBSERVE

READ_ONLY_TEXT = (
    "this server is read-only and changes nothing: use a server that runs without --read-only"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControls:
    """Services that an `AuthorizedEngine` consults. `require_token` raises once the caller's token
    is no longer valid; `redaction` hides values from callers without the scope `operate`; `peer` is
    the caller's address. With `read_only` no verb changes anything."""

    require_token: Callable[[], Awaitable[None]] | None = None
    quotas: QuotaEnforcer | None = None
    audit: Audit | None = None
    redaction: Redaction | None = None
    peer: str = ""
    read_only: bool = False


class AuthorizedEngine(Wrapper):
    """An `Engine` for one caller. Closing it leaves the application's engine open."""

    def __init__(
        self, engine: Engine, caller: Caller, controls: AccessControls | None = None
    ) -> None:
        super().__init__(engine)
        self._caller = caller
        self._controls = controls or AccessControls()
        self._require_token = self._controls.require_token
        self._visible = VisibleQueues(self._engine, caller)
        self._records = RecordPermissions(self._engine, caller, wall_ms)
        self._redaction = None if caller.may(_OPERATE) else self._controls.redaction

    def find_extra(self, ability: type[Ability]) -> Ability | None:
        """Only abilities that a caller may use: no backup, no transaction, no raw jobs."""
        return self if isinstance(self, ability) else None

    async def open(self) -> None:
        """Do nothing: the application has opened the engine."""

    async def close(self) -> None:
        """Do nothing: the application closes the engine."""

    async def examine(self, *, deep: bool = False) -> Examination:
        """The full report for operators and observers without a prefix; only the clock for
        others."""
        await self._require(Scope.KNOWN)
        examinable = extra(self._engine, Examinable)
        if examinable is None:
            return Examination(now=wall_ms())
        full = self._caller.may(_OBSERVE) and not self._caller.prefix
        found = await examinable.examine(deep=deep and full)
        return found if full else Examination(now=found.now)

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        await self._require(_PRODUCE, _CONSUME, changes=True)
        self._visible.check_queue(queue.name)
        known = instead_of if isinstance(instead_of, Queue) else Queue(name=queue.name)
        if queue.dead_queue is not None and queue.dead_queue != known.dead_queue:
            self._visible.check_queue(queue.dead_queue)
        declare = self._engine.declare
        operates = self._caller.may(_OPERATE)
        if changes_only_task_limits(queue, instead_of) and (instead_of is None or not operates):
            if instead_of is not None or queue.limits:
                self._check_scope(_CONSUME, "setting the limits of tasks")
            return await declare(queue, instead_of=instead_of)
        self._check_scope(_OPERATE, "changing a queue")
        on = audit.describe_queue(queue, instead_of)
        return await self._audited(
            "queue.declare", on, lambda: declare(queue, instead_of=instead_of)
        )

    async def drop(self, name: str) -> None:
        await self._require(Scope.ADMIN, changes=True)
        self._visible.check_queue(name)
        await self._audited("queue.drop", name, lambda: self._engine.drop(name))

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        await self._require(Scope.KNOWN)
        views = await self._engine.queues(names=names, counts=counts)
        if not self._caller.prefix:
            return views
        return [view for view in views if self._caller.owns(view.queue.name)]

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        await self._require(_PRODUCE, changes=True)
        refused = {} if self._visible.unrestricted else await self._visible.refused_jobs(jobs)
        if not refused:
            return await self._enqueue(jobs)
        accepted = [job for at, job in enumerate(jobs) if at not in refused]
        receipts = iter(await self._enqueue(accepted) if accepted else ())
        return [refused[at] if at in refused else next(receipts) for at in range(len(jobs))]

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        await self._require(_CONSUME, changes=True)
        if self._caller.prefix:
            for queue in request.queues:
                self._visible.check_queue(queue)
            hidden = await self._visible.hidden_jobs(request.ids)
            if hidden:
                own = tuple(id_ for id_ in request.ids if id_ not in hidden)
                if not own:
                    return []
                request = replace(request, ids=own)
        leases = await self._engine.lease(request)
        try:
            if leases and request.wait_ms and self._require_token is not None:
                await self._require_token()
            if self._caller.prefix and request.ids:
                # A job may have moved out of the prefix after the check above.
                hidden_leases = [each for each in leases if not self._caller.owns(each.job.queue)]
                if hidden_leases:
                    await self._release(hidden_leases)
                    leases = [each for each in leases if each not in hidden_leases]
        except BaseException:
            # The caller disconnected or its token was revoked: nobody would settle these leases.
            await asyncio.shield(self._release(leases))
            raise
        return leases

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        await self._require(_CONSUME, changes=True)
        if not self._caller.prefix:
            return await self._engine.renew(renewals)
        hidden = await self._visible.hidden_jobs([each.lease.id for each in renewals])
        own = [each for each in renewals if each.lease.id not in hidden]
        leases = iter(await self._engine.renew(own) if own else ())
        return [None if each.lease.id in hidden else next(leases) for each in renewals]

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        await self._require(_CONSUME, changes=True)
        known: dict[int, Outcome] = {}
        if not self._visible.unrestricted:
            known = await self._visible.known_outcomes(settlements)
        if not known:
            return await self._settle(settlements)
        allowed = [each for at, each in enumerate(settlements) if at not in known]
        outcomes = iter(await self._settle(allowed) if allowed else ())
        return [known[at] if at in known else next(outcomes) for at in range(len(settlements))]

    async def overdue(self, limit: int) -> Overdue:
        await self._require_without_prefix(_CONSUME)
        return await self._engine.overdue(limit)

    async def expired(self, limit: int) -> Expired:
        await self._require_without_prefix(_CONSUME)
        return await self._engine.expired(limit)

    async def finished(self, limit: int) -> list[Job]:
        await self._require_without_prefix(_OPERATE)
        return await self._engine.finished(limit)

    async def recount(self, limit: int) -> int:
        await self._require_without_prefix(_OPERATE, changes=True)
        return await self._engine.recount(limit)

    async def flow(self, queue: str, *, limit: int) -> Flow:
        await self._require(_CONSUME, _OBSERVE)
        self._visible.check_queue(queue)
        return await self._engine.flow(queue, limit=limit)

    async def waits(self, id: str) -> Waits | None:
        await self._require(Scope.KNOWN)
        if self._caller.prefix and await self._visible.hidden_jobs([id]):
            return None
        return await self._engine.waits(id)

    async def get(self, id: str) -> Job | None:
        await self._require(Scope.KNOWN)
        job = await self._engine.get(id)
        if job is None or not self._caller.owns(job.queue):
            return None
        if job.state is State.LEASED and self._caller.may(_CONSUME):
            # Workers get the jobs that they run as they are.
            return job
        rules = await self._redaction_rules()
        return rules.job(job) if rules else job

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        await self._require(Scope.KNOWN)
        self._visible.check_filter(wanted)
        rules = await self._redaction_rules()
        if not rules:
            return self._visible_page(
                await self._engine.find(wanted, limit=limit, after=after), wanted
            )
        # The bytes that are read are bounded here, because the caller does not see their number.
        found = await bounded_reply.find(self._engine, wanted, limit=limit, after=after)
        page = self._visible_page(found, wanted)
        return replace(page, jobs=await rules.jobs(page.jobs))

    async def find_rows(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        """See `ListsRows`."""
        await self._require(Scope.KNOWN)
        self._visible.check_filter(wanted)
        found = await find_rows(self._engine, wanted, limit=limit, after=after)
        page = self._visible_page(found, wanted)
        rules = await self._redaction_rules()
        return replace(page, jobs=await rules.jobs(page.jobs)) if rules else page

    def _visible_page(self, page: Page, wanted: JobFilter) -> Page:
        if not self._caller.prefix or wanted.queue is not None:
            return page
        return replace(page, jobs=tuple(job for job in page.jobs if self._caller.owns(job.queue)))

    async def _redaction_rules(self) -> RedactionRules | None:
        """The rules that hide data from this caller; None or no rules if nothing is hidden."""
        return None if self._redaction is None else await self._redaction.rules()

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        await self._require(Scope.KNOWN)
        self._visible.check_filter(wanted)
        if self._caller.prefix and wanted.queue is None:
            hidden = await self._visible.hidden_jobs(wanted.ids or ())
            own = tuple(id_ for id_ in wanted.ids or () if id_ not in hidden)
            wanted = replace(wanted, ids=own)
        return await self._engine.tally(wanted, by, limit=limit)

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        await self._require(_CONSUME, changes=True)
        if not is_worker_cancel(wanted, amendment):
            self._check_scope(_OPERATE, "changing jobs")
        if isinstance(amendment, Move):
            self._visible.check_queue(amendment.queue)
        if wanted.queue is not None:
            self._visible.check_queue(wanted.queue)
        if not isinstance(amendment, Delete):
            # The timeline names the caller that was authenticated, not the one that is claimed.
            amendment = replace(amendment, by=self._caller.name)
        what = f"jobs.{type(amendment).__name__.lower()}"
        on = audit.describe_jobs(wanted, amendment)
        return await self._audited(what, on, lambda: self._amend(wanted, amendment, limit))

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        await self._require(Scope.KNOWN)
        records = await self._records.load(kind, after=after, limit=limit)
        rules = await self._redaction_rules() if kind in REDACTED_KINDS else None
        return [shown for each in records if (shown := rules.record(each))] if rules else records

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        await self._require(_PRODUCE, _CONSUME, changes=True)
        records = await self._records.signed(records)
        acts = await self._records.operator_acts(records)
        if not acts:
            return await self._save(records)
        what = f"{acts[0].kind}.{'remove' if acts[0].value is None else 'save'}"
        return await self._audited(what, audit.describe_records(acts), lambda: self._save(records))

    async def _save(self, records: Sequence[Record]) -> list[Saved]:
        await self._records.check_save(records)
        return await self._engine.save(records)

    async def _require(self, *scopes: Scope, changes: bool = False) -> None:
        """Raise unless the token is still valid and has any of these scopes, and the server may
        change something if the verb does."""
        if self._require_token is not None:
            await self._require_token()
        if not self._caller.may_any(scopes):
            raise Forbidden(missing_scope(*scopes))
        if changes and self._controls.read_only:
            raise ReadOnly(READ_ONLY_TEXT)

    def _check_scope(self, scope: Scope, act: str) -> None:
        if scope not in self._caller.scopes:
            raise Forbidden(f'{act} needs the scope "{scope.value}"')

    async def _require_without_prefix(self, scope: Scope, *, changes: bool = False) -> None:
        await self._require(scope, changes=changes)
        if self._caller.prefix:
            raise Forbidden("upkeep works on a whole namespace: use a token without a prefix")

    async def _enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        quotas = self._controls.quotas
        if quotas is None:
            return await self._engine.enqueue(jobs)
        charged = await quotas.charge(jobs)
        try:
            receipts = await self._engine.enqueue(jobs)
        except OutcomeUnknown:
            raise
        except HoldfastError:
            quotas.refund_all(charged)
            raise
        finally:
            quotas.ended(charged)
        quotas.refund(jobs, receipts, charged)
        return receipts

    async def _settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """Follow-up jobs count towards quotas, but are never refused for them, nor for a full
        queue."""
        quotas = self._controls.quotas
        charged: dict[int, Charged] = {}
        if quotas is not None:
            for at, each in enumerate(settlements):
                if isinstance(each.verdict, Complete) and each.verdict.then:
                    charged[at] = await quotas.charge(each.verdict.then, anyway=True)
        if quotas is None or not charged:
            return await self._engine.settle(settlements)
        try:
            outcomes = await self._engine.settle(settlements)
        finally:
            for charge in charged.values():
                quotas.ended(charge)
        for at, charge in charged.items():
            if outcomes[at] is not Outcome.SETTLED:
                quotas.refund_all(charge)
        return outcomes

    async def _amend(self, wanted: JobFilter, amendment: Amendment, limit: int) -> int:
        changed = 0
        for part in await self._visible.allowed_filters(wanted, amendment):
            if changed >= limit:
                break
            try:
                changed += await self._engine.amend(part, amendment, limit=limit - changed)
            except HoldfastError as error:
                if not changed:
                    raise
                raise OutcomeUnknown(
                    f"{changed} jobs were changed before the error: {error}"
                ) from error
        return changed

    async def _audited(self, what: str, on: str, make: Callable[[], Awaitable[Result]]) -> Result:
        """Perform an operator's act: write it to the audit log before, and its outcome after."""
        audit = self._controls.audit
        if audit is None:
            return await make()
        caller, peer = self._caller, self._controls.peer
        act = AuditEntry(at=0, who=caller.name, token=caller.token, peer=peer, what=what, on=on)
        async with audit.doing(act) as noted:
            result = await make()
            is_count = isinstance(result, int) and not isinstance(result, bool)
            noted.changed = int(result) if is_count else None  # type: ignore[call-overload]
        return result

    async def _release(self, leases: Sequence[Lease]) -> None:
        verdict = Release("the caller may not have this lease", unstarted=True)
        await self._engine.settle([Settlement(lease=each, verdict=verdict) for each in leases])
