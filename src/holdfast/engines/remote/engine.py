"""RemoteEngine: the engine of a Holdfast server; every verb is one request.

It stores and decides nothing. Calls that are safe to repeat are repeated while the server is
unreachable. If a caller is cancelled while it waits for a lease, the server releases what it
granted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import uuid_utils
from msgspec.structs import replace

from holdfast.core import bounds, checks
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
    Tally,
    TallyBy,
    Waits,
)
from holdfast.core.partitions import home_of, make_at_home
from holdfast.core.verdict import Amendment, Outcome, Release, Settlement
from holdfast.engines import wire
from holdfast.engines.base import ANY, Expired, Known, Overdue, Saved, Traits
from holdfast.engines.extras import Examination
from holdfast.engines.lease import LeaseReturns
from holdfast.engines.remote import calls
from holdfast.engines.remote.client import ANSWER_S, ServerClient, UnsendableCall
from holdfast.engines.support import Support
from holdfast.engines.wrapper import enqueue_supported
from holdfast.errors import (
    ConfigError,
    EngineClosed,
    EngineUnavailable,
    Forbidden,
    HoldfastError,
    OutcomeUnknown,
    Unauthenticated,
    Unsupported,
    UsageError,
)

_log = logging.getLogger("holdfast.remote")

_WAIT_S_ONE = 20.0
"""The longest wait of one request: proxies may cut off a silent one."""
_OPEN_RETRY_S_MAX = 3.0
_RENEW_S = 5.0
"""A renewal must not hang: try a new connection early."""
_PAUSE_S = 0.5
_PARTITIONS_S = 2.0
"""While a partition is shut out, how often a producer asks whether it is back."""
_CURSOR_MAX = 10**400 - 1

_BEFORE_OPEN = Traits(
    name="remote",
    durable=True,
    shared=True,
    groups=True,
    dependencies=True,
    rates=True,
    dead_leases=True,
    queue_expiry=True,
    key_hold=True,
    parent_filter=True,
)


class RemoteEngine:
    """See `Engine`. `place` is the server's address. `namespace` is for tokens that may choose one;
    `ca` is a file of CA certificates to use instead of the system's, `cert` a file with a client
    certificate and its key."""

    def __init__(
        self,
        place: str,
        *,
        token: str | None = None,
        namespace: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
    ) -> None:
        self.place = place
        self._headers: dict[str, str] = {}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        if namespace is not None:
            self._headers["holdfast-namespace"] = namespace
        self._ca = ca
        self._cert = cert
        self._client: ServerClient | None = None
        self._traits = _BEFORE_OPEN
        self._support = Support(_BEFORE_OPEN)
        self._partitions_at = 0.0
        self._returns = LeaseReturns(
            self.settle, Release("the caller was cancelled", unstarted=True), _log
        )

    @property
    def traits(self) -> Traits:
        """The traits of the server's engine; through the server any engine is shared. Full until
        the engine is open. The server checks them, and this engine those that stand for fields
        which an older server would ignore."""
        return self._traits

    async def open(self) -> None:
        if self._client is not None:
            return
        client = ServerClient(self.place, headers=self._headers, tls=self._tls())
        try:
            about = await client.about(retry_s_max=_OPEN_RETRY_S_MAX)
        except BaseException as error:
            client.close()
            if isinstance(error, Unauthenticated) and "authorization" not in self._headers:
                remedy = "give it as HOLDFAST_TOKEN, or before the host as hf_…@"
                raise Unauthenticated(f"{self.place} requires a token: {remedy}") from None
            raise
        self._traits = remote_traits(about.traits)
        self._support = Support(about.traits)
        self._client = client

    async def close(self) -> None:
        await self._returns.ended()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    async def examine(self, *, deep: bool = False) -> Examination:
        """The server's report on its store; only the time if the token may not read it."""
        try:
            found: Examination = await self._call("examine", wire.ExamineCall(deep))
        except (Forbidden, Unsupported):
            return Examination(now=(await self._opened.about()).now)
        return found

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Call a REST operation of the server: JSON in and out."""
        return await self._opened.ask(method, path, body)

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        self._support.check_queue(queue)
        known = msgspec.UNSET if instead_of is ANY else instead_of
        written: bool = await self._call("declare", wire.DeclareCall(queue, known))
        return written

    async def drop(self, name: str) -> None:
        await self._call_by_name("drop", wire.DropCall(name))

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        valid = None
        if names is not None:
            valid = [name for name in names if bounds.QUEUE_NAME.match(name)]
        views: list[QueueView] = await self._call("queues", wire.QueuesCall(counts, valid))
        if valid is not None:
            # A server that does not know of names sends all queues.
            views = [view for view in views if view.queue.name in valid]
        return views

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        checks.check_batch(len(jobs))
        return await enqueue_supported(self._support, jobs, self._enqueue)

    async def _enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        parts = calls.split_jobs(jobs)
        client = self._opened
        if not all(client.partitions):
            await self._read_partitions(age_s_max=_PARTITIONS_S)
        try:
            receipts: list[Receipt] = await self._in_parts(
                parts, "enqueue", wire.EnqueueCall, jobs, calls.unsendable_jobs
            )
        except EngineUnavailable:
            await self._read_partitions()
            raise
        if client.partitions and any(each.code == EngineUnavailable.code for each in receipts):
            await self._read_partitions()
        return receipts

    def mint(self) -> str:
        """A job id whose home is in use, as far as the server said."""
        known = () if self._client is None else self._client.partitions
        if all(known) or not any(known):
            return str(uuid_utils.uuid7())
        places = [place for place, is_in in enumerate(known) if is_in]
        return make_at_home(lambda: str(uuid_utils.uuid7()), places, len(known))

    def mint_instead(self, id: str) -> str | None:
        known = () if self._client is None else self._client.partitions
        if not any(known) or known[home_of(id, len(known))]:
            return None
        return self.mint()

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        """Keeps waiting through an outage; raises the last error if the outage outlasts the
        wait.
        """
        self._support.check_request(request)
        loop = asyncio.get_running_loop()
        end = loop.time() + request.wait_ms / 1000
        client = self._opened

        def asking() -> wire.LeaseCall:
            wait_s = min(max(end - loop.time(), 0.0), _WAIT_S_ONE)
            return wire.LeaseCall(replace(request, wait_ms=round(wait_s * 1000)))

        while True:
            sent_at = loop.time()
            try:
                leases: list[Lease] = await client.call(
                    "lease",
                    asking,
                    answer_s=ANSWER_S + _WAIT_S_ONE,
                    until=end if request.wait_ms else None,
                    on_late_answer=self._returns.begin,
                )
            except (EngineClosed, OutcomeUnknown):
                if self._client is client:
                    raise
                return []
            now = loop.time()
            if leases or now >= end or self._client is not client:
                return leases
            if now - sent_at < min(end - sent_at, _WAIT_S_ONE) / 2:
                # A server that is shutting down answers every wait at once: do not spin.
                await asyncio.sleep(min(random.uniform(0, _PAUSE_S), end - now))

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        checks.check_renewals(renewals)
        answers: list[Lease | None] = await self._fitting(
            "renew", _carried_renewals, renewals, calls.unsendable_renewals
        )
        return answers

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        checks.check_batch(len(settlements))
        self._support.check_settlements(settlements)
        parts = calls.split_settlements(settlements)
        outcomes: list[Outcome] = await self._in_parts(
            parts, "settle", _carried_settlements, settlements, calls.unsendable_settlements
        )
        return outcomes

    async def overdue(self, limit: int) -> Overdue:
        found: Overdue = await self._call("overdue", wire.LimitCall(limit))
        return found

    async def expired(self, limit: int) -> Expired:
        found: Expired = await self._call("expired", wire.LimitCall(limit))
        return found

    async def finished(self, limit: int) -> list[Job]:
        jobs: list[Job] = await self._call("finished", wire.LimitCall(limit))
        return jobs

    async def recount(self, limit: int) -> int:
        count: int = await self._call("recount", wire.LimitCall(limit))
        return count

    async def flow(self, queue: str, *, limit: int) -> Flow:
        flow: Flow = await self._call("flow", wire.FlowCall(queue, limit))
        return flow

    async def waits(self, id: str) -> Waits | None:
        waits: Waits | None = await self._call_by_name("waits", wire.IdCall(id))
        return waits

    async def get(self, id: str) -> Job | None:
        job: Job | None = await self._call_by_name("get", wire.IdCall(id))
        return job

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        checks.check_page(limit)
        given: object = after
        if not isinstance(given, int | None) or abs(after or 0) > _CURSOR_MAX:
            raise UsageError(f"after {str(given)[:100]!r} is not a cursor of this engine")
        checks.check_filter(wanted)
        self._support.check_filter(wanted)
        jobs: list[Job] = []
        cursor = None if after is None else str(int(after))
        while True:
            # The server bounds the size of a reply, so a page may take several.
            found: wire.FoundPage = await self._call(
                "find", wire.FindCall(wanted, limit - len(jobs), cursor)
            )
            jobs += found.jobs
            cursor = found.after
            if cursor is None or len(jobs) >= limit:
                return Page(jobs=tuple(jobs), after=wire.number_of(cursor))

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        checks.check_page(limit)
        checks.check_filter(wanted)
        self._support.check_filter(wanted)
        tallies: list[Tally] = await self._call("tally", wire.TallyCall(wanted, by, limit))
        return tallies

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        checks.check_page(limit)
        checks.check_filter(wanted)
        self._support.check_filter(wanted)
        checks.check_amendment(amendment)
        carried = wire.AmendCall(wanted, amendment, limit)
        try:
            count: int = await self._call("amend", carried)
        except UnsendableCall:
            count = await self._call("amend", calls.cleaned(carried))
        return count

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        checks.check_load(kind, after, limit)
        records: list[Record] = await self._call("load", wire.LoadCall(kind, limit, after))
        return records

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        checks.check_batch(len(records))
        for record in records:
            checks.check_record(record)
        saved: list[Saved] = await self._call("save", wire.SaveCall(list(records)))
        return saved

    async def _read_partitions(self, *, age_s_max: float = 0.0) -> None:
        """Ask the server which partitions are in use, unless it was asked lately."""
        now = asyncio.get_running_loop().time()
        if self._opened.partitions and now - self._partitions_at >= age_s_max:
            self._partitions_at = now
            with contextlib.suppress(HoldfastError):
                await self._opened.about(retry_s_max=0)

    @property
    def _opened(self) -> ServerClient:
        if self._client is None:
            raise EngineClosed("the engine is not open")
        return self._client

    async def _call(self, verb: str, carried: Any) -> Any:
        answer_s = _RENEW_S if verb == "renew" else ANSWER_S
        return await self._opened.call(verb, carried, answer_s=answer_s)

    async def _call_by_name(self, verb: str, carried: Any) -> Any:
        """Like `_call`, but an id that cannot be encoded is not found."""
        try:
            return await self._call(verb, carried)
        except UnsendableCall:
            return None

    async def _in_parts(
        self,
        parts: list[calls.Part] | None,
        verb: str,
        carry: Callable[[Sequence[Any]], msgspec.Struct],
        batch: Sequence[Any],
        judge: Callable[[Sequence[Any]], dict[int, Any]],
    ) -> list[Any]:
        if parts is None:
            return await self._fitting(verb, carry, batch, judge)
        judged = judge(batch)
        good = [[at for at in part if at not in judged] for part in parts]
        made = await calls.in_turn(
            [part for part in good if part],
            lambda part: self._fitting(verb, carry, [batch[at] for at in part], judge),
        )
        made |= judged
        return [made[at] for at in range(len(batch))]

    async def _fitting(
        self,
        verb: str,
        carry: Callable[[Sequence[Any]], msgspec.Struct],
        batch: Sequence[Any],
        judge: Callable[[Sequence[Any]], dict[int, Any]],
    ) -> list[Any]:
        """The answers to a batch. Items that cannot be encoded are answered here; the others are
        sent.
        """
        try:
            answers: list[Any] = await self._call(verb, carry(batch))
        except UnsendableCall:
            judged = judge(batch)
            rest = [each for place, each in enumerate(batch) if place not in judged]
            others = iter(await self._call(verb, calls.cleaned(carry(rest))) if rest else ())
            return [judged[at] if at in judged else next(others) for at in range(len(batch))]
        return answers

    def _tls(self) -> ssl.SSLContext | None:
        if not self.place.startswith("https:"):
            if self._ca or self._cert:
                raise ConfigError("ca= and cert= need an https:// URL")
            return None
        try:
            context = ssl.create_default_context(cafile=self._ca)
            if self._cert is not None:
                context.load_cert_chain(self._cert)
        except OSError as error:
            # ssl.SSLError is an OSError.
            named = " and ".join(filter(None, (self._ca, self._cert)))
            raise ConfigError(f"{named} cannot be used for TLS: {error}") from None
        return context


def _carried_renewals(renewals: Sequence[Renewal]) -> wire.RenewCall:
    return wire.RenewCall(
        [
            wire.SentRenewal(wire.SentLease.of(each.lease), each.lease_ms, each.note)
            for each in renewals
        ]
    )


def _carried_settlements(settlements: Sequence[Settlement]) -> wire.SettleCall:
    return wire.SettleCall(
        [
            wire.SentSettlement(wire.SentLease.of(each.lease), each.verdict, each.note)
            for each in settlements
        ]
    )


def remote_traits(traits: Traits) -> Traits:
    """The traits of a store that is used through a server."""
    return replace(traits, name="remote", shared=True, transactional=False)
