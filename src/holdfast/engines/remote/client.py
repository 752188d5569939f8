"""Calls the verbs of one server, and turns its errors into exceptions.

While the server is unreachable, calls that are safe to repeat are repeated with growing random
pauses, never shorter than the server's Retry-After.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec

from holdfast.core.codec import trace_parent
from holdfast.engines.remote.connection import ConnectionCut, HttpPool, HttpReply, ServerUnreachable
from holdfast.engines.wire import CONTENT_TYPE, VERBS, About, EnqueueCall
from holdfast.errors import (
    BY_CODE,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    HoldfastError,
    OutcomeUnknown,
    Overloaded,
    Unsupported,
    UsageError,
)
from holdfast.process import read_local_token

ANSWER_S = 30.0
RETRY_S_MAX = 10.0
_PAUSE_S, _PAUSE_S_MAX = 0.05, 2.0
_JSON = "application/json"
_BODY_MAX = 1024 * 1024 * 1024
"""The largest answer of any verb: a thousand jobs of a megabyte."""

_encode = msgspec.msgpack.Encoder().encode


class UnsendableCall(UsageError):
    """A value of the call cannot be encoded or has a wrong type. Nothing was changed."""

    code = "invalid_request"


class ServerError(msgspec.Struct):
    """An error in an answer of the server."""

    code: str
    message: str = ""
    detail: dict[str, Any] = {}
    known: bytes | None = None


class _ErrorReply(msgspec.Struct):
    error: ServerError


_read_wrong = msgspec.msgpack.Decoder(_ErrorReply).decode
_read_about = msgspec.msgpack.Decoder(About).decode


class ServerClient:
    """`place` is the server's address without the token, which is in `headers`. Without one, the
    client looks for the token of a server of its own user on this machine."""

    def __init__(
        self, place: str, *, headers: Mapping[str, str], tls: ssl.SSLContext | None
    ) -> None:
        self.place = place
        parts = urlsplit(place)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._pool = HttpPool(host, port, tls=tls, body_max=_BODY_MAX)
        self._local_tokens = partial(read_local_tokens, host, port)
        self._local_token: str | None = None
        self._has_token = "authorization" in headers
        self._path = parts.path
        given = {
            "host": parts.netloc,
            "user-agent": "holdfast",
            "accept": CONTENT_TYPE,
            "content-type": CONTENT_TYPE,
            **headers,
        }
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self.partitions: tuple[bool, ...] = ()
        """Of each partition of the server's store, whether it was in use at the last `about`."""
        self._heads = {verb: self._head("POST", f"/v1/engine/{verb}") for verb in VERBS}

    def close(self) -> None:
        self._pool.close()

    async def about(self, *, retry_s_max: float = RETRY_S_MAX) -> About:
        request = self._head("GET", "/v1/engine") + b"0\r\n\r\n"
        try:
            answer = await self._repeat(request, repeatable=True, retry_s_max=retry_s_max)
        except OutcomeUnknown as error:
            # The request only reads, so nothing can have changed.
            hint = "; does it serve https://?" if self.place.startswith("http:") else ""
            raise EngineUnavailable(f"{error}{hint}") from None
        about: About = self._read(answer, _read_about)
        self.partitions = about.partitions
        return about

    async def call(
        self,
        verb: str,
        carried: Any,
        *,
        answer_s: float = ANSWER_S,
        retry_s_max: float = RETRY_S_MAX,
        until: float | None = None,
        on_late_answer: Callable[[Any], None] | None = None,
    ) -> Any:
        """Call a verb of the server's engine. `carried` may be a function that makes new arguments
        for each attempt. The attempts end at the loop time `until`, or after `retry_s_max`.
        `on_late_answer` gets an answer that arrived after the caller was cancelled.
        """
        known = VERBS[verb]
        request = partial(self._call_of, verb, carried)
        answer = await self._repeat(
            request if callable(carried) else request(),
            repeatable=known.repeatable,
            answer_s=answer_s,
            retry_s_max=retry_s_max,
            until=until,
            # Whether a partition is back soon is not known, and the job may fit into another.
            patient=verb != "enqueue" or not self.partitions,
            on_late_answer=on_late_answer
            and (lambda late: self._pass_on(late, known.read_answer, on_late_answer)),
        )
        try:
            return self._read(answer, known.read_answer)
        except OutcomeUnknown as error:
            if isinstance(error.known.get(-1), bytes):
                raise OutcomeUnknown(str(error), known=known.read_known(error.known[-1])) from None
            raise

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Call a REST operation of the server: JSON in and out."""
        head = self._head(method, path).replace(CONTENT_TYPE.encode(), _JSON.encode())
        request = b"%b%d\r\n\r\n%b" % (head, len(body), body)
        answer = await self._repeat(
            request,
            repeatable=method != "POST",
            retry_s_max=RETRY_S_MAX,
        )
        if answer.status < 300:
            return answer.body
        try:
            trouble = msgspec.json.decode(answer.body, type=_ErrorReply).error
        except msgspec.MsgspecError:
            raise EngineError(f"{self.place} answered {answer.status}") from None
        raise _error(trouble, answer.status)

    def _call_of(self, verb: str, carried: Any) -> bytes:
        try:
            body = _encode(carried() if callable(carried) else carried)
        except (TypeError, ValueError, OverflowError) as error:
            raise UnsendableCall(f"the call cannot be encoded: {error}") from None
        head = self._heads[verb]
        if isinstance(carried, EnqueueCall) and carried.jobs and carried.jobs[0].headers:
            head = _with_trace(head, carried.jobs[0].headers)
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)

    def _head(self, method: str, path: str) -> bytes:
        """The request head without the value of content-length, which comes last."""
        text = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}content-length: "
        return text.encode("ascii")

    async def _repeat(
        self,
        request: bytes | Callable[[], bytes],
        *,
        repeatable: bool,
        retry_s_max: float,
        until: float | None = None,
        answer_s: float = ANSWER_S,
        patient: bool = True,
        on_late_answer: Callable[[HttpReply], None] | None = None,
    ) -> HttpReply:
        """Send the request until the server itself answers, or the time is up. Unless `patient`, it
        is an answer that the store is unavailable."""
        end = until
        doubtful = False
        pause_s = _PAUSE_S
        while True:
            asked_s = 0.0
            try:
                data = request if isinstance(request, bytes) else request()
                answer = await self._ask(data, answer_s, on_late_answer)
            except ServerUnreachable as error:
                why, again = str(error), True
            except ConnectionCut as error:
                why, again, doubtful = str(error), repeatable, True
            else:
                if answer.status not in (502, 503, 504):
                    return answer
                if _content_type(answer) == CONTENT_TYPE:
                    refusal = _refusal(answer)
                    if answer.status != 503 or (
                        not patient and refusal.code == EngineUnavailable.code
                    ):
                        return answer
                    # The server itself refused: it did nothing.
                    why, again, asked_s = refusal.message, True, _seconds(answer.retry_after)
                else:
                    # A proxy answered: it may have forwarded the request.
                    why = f"a proxy in front of the server answered {answer.status}"
                    again, doubtful = repeatable, True
            if self._pool.closed and not doubtful:
                raise EngineClosed("the engine was closed")
            now = asyncio.get_running_loop().time()
            end = now + retry_s_max if end is None else end
            wait_s = max(asked_s, random.uniform(0, pause_s))
            if not again or self._pool.closed or now + wait_s > end:
                raise self._no_answer(why, doubtful=doubtful) from None
            await asyncio.sleep(wait_s)
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    async def _ask(
        self, data: bytes, answer_s: float, on_late_answer: Callable[[HttpReply], None] | None
    ) -> HttpReply:
        """Send a request once. If the server refuses it for want of a token, send it again with the
        one in its private file, which changes when the server restarts."""
        ask = partial(self._pool.ask, timeout_s=answer_s, on_late_answer=on_late_answer)
        used = self._local_token
        answer = await ask(_with_token(data, used))
        if answer.status == 401 and not self._has_token:
            for token in (*self._local_tokens(), None):
                if token == used:
                    continue
                answer = await ask(_with_token(data, token))
                if answer.status != 401:
                    self._local_token = token
                    break
        return answer

    def _no_answer(self, why: str, *, doubtful: bool) -> EngineError:
        if doubtful:
            return OutcomeUnknown(f"{self.place} did not answer: {why}")
        return EngineUnavailable(f"{self.place} cannot be reached: {why}")

    def _read(self, answer: HttpReply, read: Callable[[bytes], Any]) -> Any:
        content_type = _content_type(answer)
        try:
            if answer.status == 404 and content_type == _JSON and _is_unknown_path(answer.body):
                raise EngineError(
                    f"{self.place} does not know this request: correct the path of the URL, or use "
                    "the same version of Holdfast at both ends"
                )
            if content_type != CONTENT_TYPE:
                raise msgspec.DecodeError(
                    f"it answered {answer.status} with {content_type or 'nothing'}"
                )
            if answer.status < 300:
                return read(answer.body)
            trouble = _read_wrong(answer.body).error
        except msgspec.MsgspecError as error:
            raise EngineError(f"{self.place} is not a Holdfast server: {error}") from None
        raise _error(trouble, answer.status)

    def _pass_on(
        self, late: HttpReply, read: Callable[[bytes], Any], on_late_answer: Callable[[Any], None]
    ) -> None:
        if late.status < 300 and _content_type(late) == CONTENT_TYPE:
            on_late_answer(read(late.body))


def read_local_tokens(host: str, port: int) -> Iterator[str]:
    """Tokens from the private files of servers at this address, if it is of this machine."""
    try:
        addresses = [ipaddress.ip_address(host)]
    except ValueError:
        addresses = [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]
        addresses = addresses if host == "localhost" else []
    for address in addresses:
        token = read_local_token(str(address), port) if address.is_loopback else ""
        if re.fullmatch(r"[\x21-\x7e]{1,512}", token):
            yield token


def _with_token(request: bytes, token: str | None) -> bytes:
    if token is None:
        return request
    line, _, rest = request.partition(b"\r\n")
    return b"%b\r\nauthorization: Bearer %b\r\n%b" % (line, token.encode("ascii"), rest)


def _is_unknown_path(body: bytes) -> bool:
    """True for the error that only a Holdfast server sends."""
    try:
        return msgspec.json.decode(body, type=_ErrorReply).error.code == "unknown_path"
    except msgspec.MsgspecError:
        return False


def _refusal(answer: HttpReply) -> ServerError:
    try:
        return _read_wrong(answer.body).error
    except msgspec.MsgspecError:
        return ServerError(code=Overloaded.code, message="it is overloaded")


def _content_type(answer: HttpReply) -> str:
    return answer.content_type.partition(";")[0].strip()


def _seconds(text: str) -> float:
    """The seconds of a Retry-After header; 0 if it is missing or a date."""
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0.0


def _error(trouble: ServerError, status: int) -> HoldfastError:
    kind = BY_CODE.get(trouble.code, UsageError)
    if trouble.code in (UnsendableCall.code, "bad_request"):
        return UnsendableCall(trouble.message)
    if status >= 500 and not issubclass(kind, (EngineError, UsageError)):
        return EngineError(trouble.message)
    if status == 504 and kind is UsageError:
        # The server gave up before it changed anything.
        return EngineUnavailable(trouble.message)
    if kind is Unsupported:
        detail = trouble.detail
        return Unsupported(
            str(detail.get("engine")), str(detail.get("feature")), str(detail.get("remedy") or "")
        )
    if kind is OutcomeUnknown:
        return OutcomeUnknown(trouble.message, known={-1: trouble.known} if trouble.known else None)
    if kind is EngineClosed:
        # The server's engine is closed, not this one: it will open again.
        return EngineUnavailable(trouble.message)
    return kind(trouble.message)


def _with_trace(head: bytes, headers: Mapping[str, str]) -> bytes:
    """The request head with the trace of the job it carries."""
    parent = trace_parent(headers)
    if parent is None:
        return head
    line, _, length = head.rpartition(b"\r\n")
    return b"%b\r\ntraceparent: %b\r\n%b" % (line, parent.encode(), length)
