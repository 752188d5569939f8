"""The remote engine with enqueue, lease and settle over REST, as a client in another language.

Calls that REST cannot express (payloads of arbitrary bytes, internal verdicts) use the verbs of the
remote engine.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec

from holdfast.core.model import Job, Lease, LeaseRequest, NewJob, Reason, Receipt, Status
from holdfast.core.verdict import Bury, Complete, Forward, Outcome, Release, Retry, Settlement
from holdfast.errors import EngineError, EngineUnavailable, OutcomeUnknown
from torture.retries import NotifyingRemoteEngine

_TIMEOUT_S = 30


class _LeasedJob(msgspec.Struct, kw_only=True):
    id: str
    queue: str
    task: str
    payload: msgspec.Raw
    payload_base64: bytes | None = None
    attempts: int
    priority: int
    tenant: str | None
    group: str | None
    due_at: str
    leased_at: str
    expires_at: str | None
    cancel_requested: bool


class _Leased(msgspec.Struct):
    token: int
    lease_ms: int
    job: _LeasedJob


class _Leases(msgspec.Struct):
    leases: list[_Leased]


class RestEngine(NotifyingRemoteEngine):
    """Enqueues, leases and settles over REST; see `Engine`."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        if not all(_is_json(job.payload) for job in jobs):
            return await super().enqueue(jobs)
        bodies = [_new(job) for job in jobs]
        queues = {job.queue for job in jobs}
        path = "/v1/jobs"
        if len(queues) == 1:
            path = f"/v1/queues/{queues.pop()}/jobs"
            for body in bodies:
                del body["queue"]
        created = msgspec.json.decode(await self._post(path, {"jobs": bodies}))["jobs"]
        return [_receipt(each) for each in created]

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        body: dict[str, Any] = {
            "limit": request.limit,
            "worker": request.worker,
            "wait": request.wait_ms / 1000,
        }
        body |= {"ids": request.ids} if request.ids else {"queues": request.queues}
        answer = await self._post("/v1/lease", body)
        return [_lease(each) for each in msgspec.json.decode(answer, type=_Leases).leases]

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        verdicts = [_verdict(each) for each in settlements]
        if None in verdicts:
            return await super().settle(settlements)
        outcomes = msgspec.json.decode(await self._post("/v1/settle", {"verdicts": verdicts}))
        return [Outcome(each["outcome"]) for each in outcomes["outcomes"]]

    async def _post(self, path: str, body: Any) -> bytes:
        return await asyncio.to_thread(_post, self.place, path, msgspec.json.encode(body))


def _post(url: str, path: str, body: bytes) -> bytes:
    """Return the response body, or raise an error that says whether it may have had effect."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT_S)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise EngineUnavailable(str(error)) from None
        try:
            connection.request("POST", path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise OutcomeUnknown(f"{type(error).__name__}: {error}") from None
    finally:
        connection.close()
    if response.status < 300:
        return content
    text = f"{response.status} {content[:300].decode(errors='replace')}"
    if response.status == 504:
        raise OutcomeUnknown(text)
    if response.status in (503, 507) or response.status < 500:
        # A refused request had no effect.
        raise EngineUnavailable(text)
    raise EngineError(text)


def _is_json(payload: bytes) -> bool:
    try:
        json.loads(payload)
    except ValueError:
        return False
    return True


def _new(job: NewJob) -> dict[str, Any]:
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "payload": msgspec.Raw(job.payload),
        "priority": job.priority,
        "delay": job.delay_ms / 1000,
        "expires": None if job.expires_ms is None else job.expires_ms / 1000,
        "key": job.key,
        "key_window": None if job.key is None else job.key_window_ms / 1000,
        "key_hold": None if job.key is None else job.key_hold,
        "tenant": job.tenant,
        "group": job.group,
        "after": list(job.after) or None,
        "after_on": job.after_on if job.after else None,
        "parent_death": job.parent_death if job.after else None,
    }


def _receipt(created: dict[str, Any]) -> Receipt:
    error = created.get("error")
    if error is not None:
        code, text = error["code"], error["message"]
        return Receipt(id=created["id"], status=Status.REFUSED, code=code, text=text)
    return Receipt(
        id=created["id"], status=Status.DUPLICATE if created["duplicate"] else Status.NEW
    )


def _lease(leased: _Leased) -> Lease:
    job = leased.job
    return Lease(
        token=leased.token,
        lease_ms=leased.lease_ms,
        job=Job(
            id=job.id,
            task=job.task,
            queue=job.queue,
            payload=job.payload_base64 or bytes(job.payload),
            priority=job.priority,
            attempt=job.attempts,
            due_at=_ms(job.due_at),
            leased_at=_ms(job.leased_at),
            expires_at=None if job.expires_at is None else _ms(job.expires_at),
            token=leased.token,
            cancel_requested=job.cancel_requested,
            tenant=job.tenant,
            group=job.group,
        ),
    )


def _verdict(settlement: Settlement) -> dict[str, Any] | None:
    """Return the verdict as JSON, or None if REST has no such verdict."""
    fields: dict[str, Any] = {"id": settlement.lease.id, "token": settlement.lease.token}
    match settlement.verdict:
        case Complete(then=then) if not then:
            return fields | {"verdict": "complete", "result": "done"}
        case Retry(delay_ms=delay_ms, failure=failure):
            error = None if failure is None else {"kind": failure.kind, "message": failure.message}
            return fields | {"verdict": "retry", "delay": delay_ms / 1000, "error": error}
        case Bury(reason=Reason.EXPLICIT, failure=None):
            return fields | {"verdict": "bury"}
        case Release(text=text, delay_ms=delay_ms):
            return fields | {"verdict": "release", "error": text, "delay": delay_ms / 1000}
        case Forward(queue=queue):
            return fields | {"verdict": "forward", "queue": queue}
        case _:
            return None


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
