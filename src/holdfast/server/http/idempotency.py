"""Idempotency-Key: a repeated request with the same key gets the first answer again.

A record is written before the request is carried out, and completed with its answer. A request
without an answer may have taken effect: it is never carried out again, and the client gets
`outcome_unknown`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated, Final
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Meta

from holdfast.core import bounds
from holdfast.engines.base import Engine
from holdfast.errors import (
    EngineUnavailable,
    HoldfastError,
    NotAccepting,
    OutcomeUnknown,
    QueueFull,
    QuotaExceeded,
    StorageFull,
    UsageError,
)
from holdfast.ops.records import LogKind, Stored, remove_records
from holdfast.server.access.admission import ApiCall
from holdfast.server.http.problems import ClientDisconnected, InvalidRequest
from holdfast.server.http.response import Reply

HEADER: Final = "Idempotency-Key"
PATTERN: Final = r"^[!-~]{1,128}$"
KIND: Final = "idempotency"
RETENTION_MS: Final = bounds.DAY_MS

_KEY = re.compile(r"[!-~]{1,128}\Z")
_STORED_BYTES_MAX = 128 * 1024
_SWEEP_BATCH = 10
"""Each new key removes up to this many old ones: more are removed than added, at a bounded cost."""
_PROCESS = secrets.token_hex(8)
NOTHING_DONE = (EngineUnavailable, StorageFull, QueueFull, QuotaExceeded, NotAccepting)

Make = Callable[[], Awaitable[Reply]]
"""Makes the reply, also for a refusal. Raises only if a repeated request may succeed, if the
outcome is unknown, or ClientDisconnected if nothing was done and the client has disconnected.
"""


class KeyReused(UsageError):
    """The key was used for another request: use a new key for each request."""

    code = "key_reused"


class InProgress(UsageError):
    """The first request with this key is still in progress: repeat it to get its answer."""

    code = "in_progress"


class AnswerGone(UsageError):
    """The request was carried out, but its answer was too large to store: look up what it did."""

    code = "answer_gone"


class _StoredReply(msgspec.Struct, array_like=True):
    """`request` is a hash of the whole request. Without a `status` there is no answer yet."""

    request: str
    process: str
    status: Annotated[int, Meta(ge=0, le=599)] = 0
    headers: list[tuple[bytes, bytes]] = []
    body: bytes | None = None


class _ReplyKind(LogKind[_StoredReply]):
    """Stored as MessagePack, since a body is bytes."""

    def encode_value(self, value: _StoredReply) -> bytes:
        return _ENCODER.encode(value)

    def decode_value(self, data: bytes) -> _StoredReply:
        return _DECODER.decode(data)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_StoredReply)
_REPLIES = _ReplyKind(KIND, _StoredReply, label="idempotency key")


class IdempotencyKeys:
    """The keys of one server's requests, stored in the caller's namespace, hidden from callers."""

    def __init__(self, *, request_ms_max: int) -> None:
        # Twice the bound: a request in another process has certainly ended by then.
        self._running_ms_max = 2 * request_ms_max
        self._running: set[tuple[str, str]] = set()
        self._sweep_after: WeakKeyDictionary[Engine, str] = WeakKeyDictionary()

    async def once(self, call: ApiCall, header: str, raw: bytes, make: Make) -> Reply:
        """The reply of `make`, or the stored one. `raw` is the whole request."""
        if not _KEY.match(header):
            raise InvalidRequest(f"{HEADER}: expected 1 to 128 printable characters without spaces")
        # The application's engine, because the caller's own may not use these records.
        engine = call.app.engine
        caller = call.caller
        caller_key = f"{caller.token or caller.name}\n{header}".encode()
        key = hashlib.sha256(caller_key).hexdigest()
        request = hashlib.sha256(raw).hexdigest()
        running = (caller.namespace, key)
        if running in self._running:
            raise InProgress("a request with this key is still in progress")
        self._running.add(running)
        try:
            if not await _REPLIES.create(engine, key, _StoredReply(request, _PROCESS)):
                return self._stored_reply(await _REPLIES.read(engine, key), request)
            return await self._first(engine, key, request, make)
        finally:
            self._running.discard(running)

    async def _first(self, engine: Engine, key: str, request: str, make: Make) -> Reply:
        try:
            reply = await make()
        except (*NOTHING_DONE, ClientDisconnected):
            # Nothing was done: the key may be used again.
            await _end(engine, key, None)
            raise
        stored = _StoredReply(request, _PROCESS, reply.status, reply.headers)
        if len(reply.body) <= _STORED_BYTES_MAX:
            stored.body = reply.body
        await _end(engine, key, stored)
        await self._sweep(engine)
        return reply

    def _stored_reply(self, found: Stored[_StoredReply] | None, request: str) -> Reply:
        if found is None:
            raise InProgress("a request with this key has just ended")
        stored = found.value
        if stored is None:
            raise _unknown()
        if stored.request != request:
            raise KeyReused("this key was used for another request: use a new key for each request")
        if stored.status:
            if stored.body is None:
                text = "the request was carried out, but its answer was too large to store"
                raise AnswerGone(text)
            return Reply(stored.status, stored.headers, stored.body)
        if stored.process != _PROCESS and found.age_ms < self._running_ms_max:
            raise InProgress("a request with this key is still in progress")
        raise _unknown()

    async def _sweep(self, engine: Engine) -> None:
        """Remove a few old keys, cycling through all of them."""
        try:
            page = await engine.load(KIND, after=self._sweep_after.get(engine), limit=_SWEEP_BATCH)
            self._sweep_after[engine] = page[-1].key if len(page) == _SWEEP_BATCH else ""
            old = [each for each in page if each.age_ms > RETENTION_MS]
            await remove_records(engine, old)
        except HoldfastError:
            # The request itself succeeded; a later sweep removes the old keys.
            self._sweep_after.pop(engine, None)


def _unknown() -> OutcomeUnknown:
    return OutcomeUnknown(
        "the outcome of the request with this key is unknown: check whether it took effect "
        "before you repeat it with a new key"
    )


async def _end(engine: Engine, key: str, reply: _StoredReply | None) -> None:
    """Complete or remove the record. If that fails, a repeated request gets `outcome_unknown`."""
    with contextlib.suppress(HoldfastError):
        await asyncio.shield(_REPLIES.save(engine, key, reply, version=1))
