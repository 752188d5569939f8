"""One server: a call of a verb in, its answer or its error out.

What is safe to repeat is repeated while the server is away, with pauses that grow, are drawn anew
each time, and are never shorter than the server asks for.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec

from holdfast.engines.remote.connection import Answer, Cut
from holdfast.engines.remote.pool import Pool, Unreachable
from holdfast.engines.verbs import CONTENT_TYPE, VERBS, About, Enqueue
from holdfast.errors import (
    BY_CODE,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    HoldfastError,
    OutcomeUnknown,
    Unsupported,
    UsageError,
)
from holdfast.tracing import parent_of

ANSWER_S = 30.0
PATIENCE_S = 10.0
_PAUSE_S, _PAUSE_S_MAX = 0.05, 2.0
_JSON = "application/json"
_BODY_MAX = 1024 * 1024 * 1024
"""A thousand jobs of a megabyte each is the most that any verb answers."""

_encode = msgspec.msgpack.Encoder().encode


class NotTaken(UsageError):
    """The call does not fit into words: a value of it is of a wrong kind. Nothing was changed."""

    code = "invalid_request"


class Trouble(msgspec.Struct):
    """An error as the server tells it."""

    code: str
    message: str = ""
    detail: dict[str, Any] = {}
    known: bytes | None = None


class _Wrong(msgspec.Struct):
    error: Trouble


_read_wrong = msgspec.msgpack.Decoder(_Wrong).decode
_read_about = msgspec.msgpack.Decoder(About).decode


class Client:
    """`place` is the server's address, without the token, which is in `headers`."""

    def __init__(
        self, place: str, *, headers: Mapping[str, str], tls: ssl.SSLContext | None
    ) -> None:
        self.place = place
        parts = urlsplit(place)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self._pool = Pool(parts.hostname or "", port, tls=tls, body_max=_BODY_MAX)
        self._path = parts.path
        given = {
            "host": parts.netloc,
            "user-agent": "holdfast",
            "accept": CONTENT_TYPE,
            "content-type": CONTENT_TYPE,
            **headers,
        }
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self._heads = {verb: self._head("POST", f"/v1/engine/{verb}") for verb in VERBS}

    def close(self) -> None:
        self._pool.close()

    async def about(self, *, patience_s: float = PATIENCE_S) -> About:
        request = self._head("GET", "/v1/engine") + b"0\r\n\r\n"
        try:
            answer = await self._repeat(request, repeatable=True, patience_s=patience_s)
        except OutcomeUnknown as error:
            # Nothing was to be done.
            hint = "; does it serve https://?" if self.place.startswith("http:") else ""
            raise EngineUnavailable(f"{error}{hint}") from None
        about: About = self._read(answer, _read_about)
        return about

    async def call(
        self,
        verb: str,
        carried: Any,
        *,
        answer_s: float = ANSWER_S,
        patience_s: float = PATIENCE_S,
        until: float | None = None,
        unheard: Callable[[Any], None] | None = None,
    ) -> Any:
        """What the server's engine answered. A function is asked at each try what to carry. With
        `until` the loop's time, and not patience, bounds the tries. `unheard` gets an answer that
        came when its caller had just been cancelled."""
        known = VERBS[verb]
        request = partial(self._call_of, verb, carried)
        answer = await self._repeat(
            request if callable(carried) else request(),
            repeatable=known.repeatable,
            answer_s=answer_s,
            patience_s=patience_s,
            until=until,
            unheard=unheard and (lambda late: self._hear(late, known.read_answer, unheard)),
        )
        try:
            return self._read(answer, known.read_answer)
        except OutcomeUnknown as error:
            if isinstance(error.known.get(-1), bytes):
                raise OutcomeUnknown(str(error), known=known.read_known(error.known[-1])) from None
            raise

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """An operation of the server that is no verb: JSON in and out."""
        head = self._head(method, path).replace(CONTENT_TYPE.encode(), _JSON.encode())
        request = b"%b%d\r\n\r\n%b" % (head, len(body), body)
        answer = await self._repeat(
            request,
            repeatable=method != "POST",
            patience_s=PATIENCE_S,
        )
        if answer.status < 300:
            return answer.body
        try:
            trouble = msgspec.json.decode(answer.body, type=_Wrong).error
        except msgspec.MsgspecError:
            raise EngineError(f"{self.place} answered {answer.status}") from None
        raise _error(trouble, answer.status)

    def _call_of(self, verb: str, carried: Any) -> bytes:
        try:
            body = _encode(carried() if callable(carried) else carried)
        except (TypeError, ValueError, OverflowError) as error:
            raise NotTaken(f"this cannot be sent: {error}") from None
        head = self._heads[verb]
        if isinstance(carried, Enqueue) and carried.jobs and carried.jobs[0].headers:
            head = _with_trace(head, carried.jobs[0].headers)
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)

    def _head(self, method: str, path: str) -> bytes:
        """All but the length, which comes last."""
        text = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}content-length: "
        return text.encode("ascii")

    async def _repeat(
        self,
        request: bytes | Callable[[], bytes],
        *,
        repeatable: bool,
        patience_s: float,
        until: float | None = None,
        answer_s: float = ANSWER_S,
        unheard: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """An answer of the server itself, sooner or later."""
        end = until
        doubtful = False
        pause_s = _PAUSE_S
        while True:
            asked_s = 0.0
            try:
                words = request if isinstance(request, bytes) else request()
                answer = await self._pool.ask(words, timeout_s=answer_s, unheard=unheard)
            except Unreachable as error:
                why, again = str(error), True
            except Cut as error:
                why, again, doubtful = str(error), repeatable, True
            else:
                if answer.status not in (502, 503, 504):
                    return answer
                if _said(answer) == CONTENT_TYPE:
                    if answer.status != 503:
                        return answer
                    # The server itself says that it did nothing.
                    why, again, asked_s = self._refusal(answer), True, _seconds(answer.retry_after)
                else:
                    # Whoever lies between may have sent it on.
                    why = f"something between here and the server answered {answer.status}"
                    again, doubtful = repeatable, True
            if self._pool.closed and not doubtful:
                raise EngineClosed("the engine was closed")
            now = asyncio.get_running_loop().time()
            end = now + patience_s if end is None else end
            wait_s = max(asked_s, random.uniform(0, pause_s))
            if not again or self._pool.closed or now + wait_s > end:
                raise self._no_answer(why, doubtful=doubtful) from None
            await asyncio.sleep(wait_s)
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    def _no_answer(self, why: str, *, doubtful: bool) -> EngineError:
        if doubtful:
            return OutcomeUnknown(f"{self.place} did not answer: {why}")
        return EngineUnavailable(f"{self.place} cannot be reached: {why}")

    def _refusal(self, answer: Answer) -> str:
        try:
            return _read_wrong(answer.body).error.message
        except msgspec.MsgspecError:
            return "it is overloaded"

    def _read(self, answer: Answer, read: Callable[[bytes], Any]) -> Any:
        said = _said(answer)
        try:
            if answer.status == 404 and said == _JSON and _is_unknown_path(answer.body):
                raise EngineError(
                    f"{self.place} does not know what it is asked here: correct the path of the "
                    "URL, or let both ends be of the same version"
                )
            if said != CONTENT_TYPE:
                raise msgspec.DecodeError(f"it answered {answer.status} with {said or 'nothing'}")
            if answer.status < 300:
                return read(answer.body)
            trouble = _read_wrong(answer.body).error
        except msgspec.MsgspecError as error:
            raise EngineError(f"{self.place} is no server of Holdfast's: {error}") from None
        raise _error(trouble, answer.status)

    def _hear(
        self, late: Answer, read: Callable[[bytes], Any], unheard: Callable[[Any], None]
    ) -> None:
        if late.status < 300 and _said(late) == CONTENT_TYPE:
            unheard(read(late.body))


def _is_unknown_path(body: bytes) -> bool:
    """Said by a server of Holdfast's, and by nobody else."""
    try:
        return msgspec.json.decode(body, type=_Wrong).error.code == "unknown_path"
    except msgspec.MsgspecError:
        return False


def _said(answer: Answer) -> str:
    return answer.content_type.partition(";")[0].strip()


def _seconds(text: str) -> float:
    """Of a Retry-After; a date in it is left alone."""
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0.0


def _error(trouble: Trouble, status: int) -> HoldfastError:
    kind = BY_CODE.get(trouble.code, UsageError)
    if trouble.code in (NotTaken.code, "bad_request"):
        return NotTaken(trouble.message)
    if status >= 500 and not issubclass(kind, (EngineError, UsageError)):
        return EngineError(trouble.message)
    if status == 504 and kind is UsageError:
        # It was given up with nothing changed.
        return EngineUnavailable(trouble.message)
    if kind is Unsupported:
        detail = trouble.detail
        return Unsupported(str(detail.get("engine")), str(detail.get("feature")))
    if kind is OutcomeUnknown:
        return OutcomeUnknown(trouble.message, known={-1: trouble.known} if trouble.known else None)
    if kind is EngineClosed:
        # That one is the server's, which will be back.
        return EngineUnavailable(trouble.message)
    return kind(trouble.message)


def _with_trace(head: bytes, headers: Mapping[str, str]) -> bytes:
    """The request belongs to the trace of what it carries."""
    parent = parent_of(headers)
    if parent is None:
        return head
    line, _, length = head.rpartition(b"\r\n")
    return b"%b\r\ntraceparent: %b\r\n%b" % (line, parent.encode(), length)
