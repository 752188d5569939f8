"""Idempotency-Key: a request that is repeated with the same key repeats only its answer.

A record says that it began, before anything is done, and afterwards what was answered. One that
began and has no answer may have happened: it is never done a second time, and that is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from holdfast.core import limits
from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
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
from holdfast.server.answers import Reply
from holdfast.server.calls import Call
from holdfast.server.refusals import ClientLeft, InvalidRequest

HEADER: Final = "Idempotency-Key"
PATTERN: Final = r"^[!-~]{1,128}$"
KIND: Final = "idempotency"
KEPT_MS: Final = limits.DAY_MS

_KEY = re.compile(r"[!-~]{1,128}\Z")
_ANSWER_MAX = 128 * 1024
_SWEPT = 10
"""More go than come, and no call pays for more than these."""
_PROCESS = secrets.token_hex(8)
NOTHING_DONE = (EngineUnavailable, StorageFull, QueueFull, QuotaExceeded, NotAccepting)

Make = Callable[[], Awaitable[Reply]]
"""Gives the answer of a refusal too: only what may have happened, or may go better, is raised; and
ClientLeft when nobody waits any longer for what did not happen."""


class KeyReused(UsageError):
    """The key was used for another request: make a new one for each."""

    code = "key_reused"


class InProgress(UsageError):
    """The first request with this key is still under way: ask again for its answer."""

    code = "in_progress"


class AnswerGone(UsageError):
    """It was done, and its answer was too large to keep: look at what it did."""

    code = "answer_gone"


class _Kept(msgspec.Struct, array_like=True):
    """`request` is a hash of everything that was asked. Without a `status` there is no answer."""

    request: str
    process: str
    status: int = 0
    headers: list[tuple[bytes, bytes]] = []
    body: bytes | None = None


class Keys:
    """The keys of one server's requests. Their records are the server's own: they are kept beside
    the jobs of the caller's namespace, and no caller can name them."""

    def __init__(self, *, request_ms_max: int) -> None:
        # Twice as long: what began in another process has certainly ended by then.
        self._running_ms_max = 2 * request_ms_max
        self._running: set[tuple[str, str]] = set()
        self._swept: WeakKeyDictionary[Engine, str] = WeakKeyDictionary()

    async def once(self, call: Call, given: str, asked: bytes, make: Make) -> Reply:
        """The answer that `make` gives, or gave before. `asked` is all that the request says."""
        if not _KEY.match(given):
            raise InvalidRequest(f"{HEADER} is 1 to 128 printable characters without spaces")
        # The application's own engine: a caller's may not touch such records.
        engine = call.app.engine
        caller = call.caller
        who = f"{caller.token or caller.name}\n{given}".encode()
        key = hashlib.sha256(who).hexdigest()
        request = hashlib.sha256(asked).hexdigest()
        running = (caller.namespace, key)
        if running in self._running:
            raise InProgress("a request with this key is still under way")
        self._running.add(running)
        try:
            begun = Record(kind=KIND, key=key, value=_written(_Kept(request, _PROCESS)))
            if (await engine.save([begun]))[0] is not Saved.SAVED:
                return self._again(await _found(engine, key), request)
            return await self._first(engine, begun, request, make)
        finally:
            self._running.discard(running)

    async def _first(self, engine: Engine, begun: Record, request: str, make: Make) -> Reply:
        try:
            reply = await make()
        except (*NOTHING_DONE, ClientLeft):
            # The next try with this key may go better.
            await _save(engine, begun, None)
            raise
        kept = _Kept(request, _PROCESS, reply.status, reply.headers)
        if len(reply.body) <= _ANSWER_MAX:
            kept.body = reply.body
        await _save(engine, begun, _written(kept))
        await self._sweep(engine)
        return reply

    def _again(self, record: Record | None, request: str) -> Reply:
        if record is None or record.value is None:
            raise InProgress("a request with this key has just ended")
        kept = _read(record.value)
        if kept.request != request:
            raise KeyReused("this key was used for another request: make a new one for each")
        if kept.status:
            if kept.body is None:
                raise AnswerGone("it was done, and its answer was too large to keep")
            return Reply(kept.status, kept.headers, kept.body)
        if kept.process != _PROCESS and record.age_ms < self._running_ms_max:
            raise InProgress("a request with this key is still under way")
        raise OutcomeUnknown(
            "the request with this key began, and how it ended is not known: "
            "look whether it happened before it is made again with a new key"
        )

    async def _sweep(self, engine: Engine) -> None:
        """Forget what is old, a few at a time, round and round."""
        try:
            page = await engine.load(KIND, after=self._swept.get(engine), limit=_SWEPT)
            self._swept[engine] = page[-1].key if len(page) == _SWEPT else ""
            old = [each for each in page if each.age_ms > KEPT_MS]
            if old:
                await engine.save([msgspec.structs.replace(each, value=None) for each in old])
        except HoldfastError:
            # It was done and answered; what is old is found by the next.
            self._swept.pop(engine, None)


async def _found(engine: Engine, key: str) -> Record | None:
    """Records are read in order: all keys are as long, and a shorter one comes before it."""
    page = await engine.load(KIND, after=key[:-1], limit=32)
    return next((each for each in page if each.key == key), None)


async def _save(engine: Engine, begun: Record, value: bytes | None) -> None:
    """If it cannot be kept, the next request with this key hears that the outcome is not known."""
    ended = msgspec.structs.replace(begun, value=value, version=begun.version + 1)
    with contextlib.suppress(HoldfastError):
        await asyncio.shield(engine.save([ended]))


_written = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(_Kept).decode
