"""Answers requests to one operation: reads the request, runs the handler, sends its answer.

A request runs in the task that uvicorn created for it. If a deadline, a disconnected client or a
stopping server ends it, that task is cancelled and the ticket holds the reason. With tracing on,
requests are spans of the caller's trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from holdfast.core.codec import TRACEPARENT, TRACESTATE
from holdfast.errors import HoldfastError, OutcomeUnknown, Unauthenticated, UsageError
from holdfast.server.access.admission import Admission, ApiCall
from holdfast.server.http.idempotency import HEADER, NOTHING_DONE, IdempotencyKeys
from holdfast.server.http.operation import Operation, Scope
from holdfast.server.http.pressure import EndReason, Pressure, RequestKind, Ticket
from holdfast.server.http.problems import (
    ClientDisconnected,
    SlowRequest,
    Stopping,
    TimedOut,
    Unexpected,
)
from holdfast.server.http.request import (
    AsgiScope,
    Receive,
    RequestReader,
    Send,
    wait_for_disconnect,
)
from holdfast.server.http.response import (
    Reply,
    ResponseEncoder,
    abort,
    begin_stream,
    end_stream,
    is_closing,
    is_disconnected,
    send_part,
    send_reply,
)
from holdfast.server.live.poll_loop import poll_loop
from holdfast.server.state import ServerState
from holdfast.telemetry.meter import Meter

_log = logging.getLogger("holdfast.server")
_WATCH_S = 1.0
_KEY_HEADER = HEADER.lower()
_TRACE_HEADERS = {name.encode(): name for name in (TRACEPARENT, TRACESTATE)}

Undo = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointServices:
    """Services that all endpoints of a server share."""

    admission: Admission
    pressure: Pressure
    keys: IdempotencyKeys
    meter: Meter
    streams: StreamGuard
    body_max: int


class StreamGuard:
    """Ends streams within a second after their caller signed out, or its token expired or was
    revoked, also if there is nothing to send. All streams share one task."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._callers: dict[Ticket, str] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watch(self, call: ApiCall, ticket: Ticket) -> Iterator[None]:
        """Watch the caller of a stream while it is open."""
        if not call.caller.credential:
            yield
            return
        self._callers[ticket] = call.caller.credential
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            del self._callers[ticket]
            if not self._callers:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            for credential in set(self._callers.values()):
                await self._check(credential)

    async def _check(self, credential: str) -> None:
        try:
            await self._server.tokens.require(credential)
        except Unauthenticated:
            for ticket in [each for each, held in self._callers.items() if held == credential]:
                ticket.end(EndReason.REVOKED)
        except HoldfastError as error:
            # The token is asked for again: a store that does not answer ends no stream.
            _log.debug("tokens of streams could not be read: %s", error)


class RequestLifecycle:
    """One request from its ticket to the end of its reply. Subclasses make the reply."""

    def __init__(self, pressure: Pressure, kind: RequestKind, *, has_body: bool) -> None:
        self._pressure = pressure
        self._kind = kind
        self._has_body = has_body

    async def __call__(
        self, scope: AsgiScope, receive: Receive, send: Send, arguments: dict[str, Any]
    ) -> None:
        started_at = time.perf_counter()
        try:
            ticket = self._pressure.begin(self._kind, has_body=self._has_body)
        except HoldfastError as error:
            reply = self._refusal(error, scope)
            await send_reply(send, reply, head=scope["method"] == "HEAD")
            return
        try:
            if self._kind is RequestKind.STREAM:
                await self._stream(scope, receive, send, arguments, ticket)
            else:
                reply = await self._reply(scope, receive, arguments, ticket)
                self._count(reply, arguments, (time.perf_counter() - started_at) * 1000)
                is_lost = ticket.undo is not None and is_closing(send)
                await self._send(send, reply, ticket, head=scope["method"] == "HEAD")
                if ticket.undo is not None and (is_lost or is_disconnected(send)):
                    await ticket.undo()
        except ClientDisconnected:
            pass
        except asyncio.CancelledError:
            if ticket.end_reason is None:
                raise
            # Cancelled while sending: do not wait for a client that does not read.
            ticket.clear_end()
            abort(send)
            # Let uvicorn see the abort before it checks whether the response was complete.
            await asyncio.sleep(0)
            if ticket.undo is not None:
                await ticket.undo()
        finally:
            self._pressure.finish(ticket)

    async def _reply(
        self, scope: AsgiScope, receive: Receive, arguments: dict[str, Any], ticket: Ticket
    ) -> Reply:
        """The reply to a request, also if it failed."""
        raise NotImplementedError

    async def _stream(
        self,
        scope: AsgiScope,
        receive: Receive,
        send: Send,
        arguments: dict[str, Any],
        ticket: Ticket,
    ) -> None:
        """Answer a request of the kind STREAM."""
        raise NotImplementedError

    def _refusal(self, error: HoldfastError, scope: AsgiScope) -> Reply:
        """Count and return the reply to a request that the server is too busy to admit."""
        raise NotImplementedError

    def _count(self, reply: Reply, arguments: dict[str, Any], ms: float) -> None:
        """Count an answered request."""
        raise NotImplementedError

    async def _send(self, send: Send, reply: Reply, ticket: Ticket, *, head: bool) -> None:
        pressure = self._pressure
        pressure.sending(ticket)
        pressure.hold(ticket, len(reply.body), refuse=False)
        await send_reply(send, reply, head=head, on_progress=lambda: pressure.sending(ticket))

    def _error_of(self, error: BaseException, ticket: Ticket, where: str) -> HoldfastError:
        """The error to answer with. Raises it again if there is no client to reply to. `where` is
        the operation, for the log."""
        reason = ticket.end_reason
        ticket.clear_end()
        match error:
            case asyncio.CancelledError():
                if reason is None:
                    raise error
                return self._end_error(reason, ticket)
            case ClientDisconnected():
                raise error
            case HoldfastError():
                return error
            case _:
                # The text of an unexpected error may contain anything, so it goes only to the log.
                _log.error("%s failed", where, exc_info=error)
                return Unexpected("the server failed with an unexpected error: see its log")

    def _end_error(self, reason: EndReason | None, ticket: Ticket) -> HoldfastError:
        if reason is EndReason.DISCONNECTED:
            raise ClientDisconnected
        if reason is EndReason.STOPPING:
            return Stopping("the server is stopping")
        if reason is EndReason.REVOKED:
            return Unauthenticated("the token or session has ended")
        if ticket.reading:
            return SlowRequest("the request did not arrive in time")
        return OutcomeUnknown("the request took too long, and may still take effect")


class Endpoint(RequestLifecycle):
    """Answers one operation. The router calls it with the values from the path."""

    def __init__(self, operation: Operation, services: EndpointServices) -> None:
        has_body = operation.body is not None
        super().__init__(services.pressure, _kind_of(operation), has_body=has_body)
        self.operation = operation
        self._handler = operation.handler
        self._is_act = _is_act(operation)
        self._keys = services.keys
        self._streams = services.streams
        self._count_request: Callable[[int, float], None]
        self._count_request = partial(services.meter.requested, operation.name)
        self._services = services

    @cached_property
    def _reader(self) -> RequestReader:
        """Made for the first request: of hundreds of operations, a server is asked for a few."""
        services = self._services
        return RequestReader(
            self.operation, services.admission, services.pressure, body_max=services.body_max
        )

    @cached_property
    def _encoder(self) -> ResponseEncoder:
        return ResponseEncoder(self.operation)

    async def _reply(
        self, scope: AsgiScope, receive: Receive, arguments: dict[str, Any], ticket: Ticket
    ) -> Reply:
        try:
            call, body = await self._reader.read(scope, receive, arguments, ticket)
            key = None if self.operation.repeatable else call.headers.get(_KEY_HEADER)
            if key is None or self._is_repeatable(arguments):
                reply, ticket.undo = await self._handle(call, arguments, receive, ticket)
                return reply
            path: bytes = scope.get("raw_path") or scope["path"].encode()
            request = b"\n".join((scope["method"].encode(), path, scope["query_string"], body))
            make = partial(self._handle_once, call, arguments, receive, ticket)
            return await self._keys.once(call, key, request, make)
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 (becomes a reply)
            return self._failure(error, ticket)

    def _is_repeatable(self, arguments: dict[str, Any]) -> bool:
        by_body = self.operation.repeatable_if
        return by_body is not None and by_body(arguments["body"])

    async def _handle(
        self, call: ApiCall, arguments: dict[str, Any], receive: Receive, ticket: Ticket
    ) -> tuple[Reply, Undo | None]:
        """The reply, and a function that undoes it if the client never reads it."""
        if self._kind is not RequestKind.WAIT:
            answer = await self._handler(call, **arguments)
            if self._is_act:
                # Viewers see it at once.
                poll_loop(call.app).wake()
            return self._encoder.success(answer), None
        with end_on_disconnect(receive, ticket) as disconnect:
            answer = await self._handler(call, **arguments)
            undo = self.operation.undo and partial(self.operation.undo, call, answer)
            # No await between this check and the sending: a disconnect would be missed.
            if not disconnect.done():
                return self._encoder.success(answer), undo
        if undo is not None:
            await undo()
        raise ClientDisconnected

    async def _handle_once(
        self, call: ApiCall, arguments: dict[str, Any], receive: Receive, ticket: Ticket
    ) -> Reply:
        """The reply to store under an Idempotency-Key. A refusal is stored like any other answer.
        Nothing is undone: the client can request the answer again."""
        try:
            return (await self._handle(call, arguments, receive, ticket))[0]
        except UsageError as error:
            if isinstance(error, NOTHING_DONE):
                raise
            return self._encoder.failure(error)
        except asyncio.CancelledError:
            reason = ticket.end_reason
            ended_early = reason in (EndReason.DISCONNECTED, EndReason.STOPPING)
            if self._kind is not RequestKind.WAIT or not ended_early:
                raise
            # A waiting handler that is cancelled has released the jobs it leased.
            ticket.clear_end()
            raise self._end_error(reason, ticket) from None

    async def _stream(
        self,
        scope: AsgiScope,
        receive: Receive,
        send: Send,
        arguments: dict[str, Any],
        ticket: Ticket,
    ) -> None:
        """Send a stream part by part, each after the previous one was written: nothing is buffered
        for a slow client.
        """
        pressure = self._pressure
        head = scope["method"] == "HEAD"
        begun = False
        try:
            call, _ = await self._reader.read(scope, receive, arguments, ticket)
            async with contextlib.aclosing(self._handler(call, **arguments)) as parts:
                with end_on_disconnect(receive, ticket), self._streams.watch(call, ticket):
                    part = await anext(parts, b"")
                    begun = True
                    self._count_request(200, 0.0)
                    await begin_stream(send, self._encoder.headers)
                    while part and not head:
                        pressure.sending(ticket)
                        await send_part(send, part)
                        pressure.sent(ticket)
                        part = await anext(parts, b"")
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 (becomes a reply)
            is_late = ticket.end_reason is EndReason.LATE
            reply = self._failure(error, ticket)
            if not begun:
                self._count_request(reply.status, 0.0)
                await send_reply(send, reply, head=head)
                return
            if is_late:
                abort(send)
                await asyncio.sleep(0)
                return
        pressure.sending(ticket)
        await end_stream(send)

    def _refusal(self, error: HoldfastError, scope: AsgiScope) -> Reply:
        reply = self._encoder.failure(error)
        self._count_request(reply.status, 0.0)
        return reply

    def _count(self, reply: Reply, arguments: dict[str, Any], ms: float) -> None:
        self._count_request(reply.status, ms)

    def _failure(self, error: BaseException, ticket: Ticket) -> Reply:
        """The reply for an error. Raises the error again if there is no client to reply to."""
        operation = self.operation
        where = f"{operation.method} {operation.path}"
        return self._encoder.failure(self._error_of(error, ticket, where))

    def _end_error(self, reason: EndReason | None, ticket: Ticket) -> HoldfastError:
        error = super()._end_error(reason, ticket)
        if isinstance(error, OutcomeUnknown) and self.operation.method == "GET":
            return TimedOut("the request took too long and was cancelled: request less at a time")
        return error


class TracedEndpoint(Endpoint):
    """An endpoint whose requests are spans of the caller's trace. Long polls and streams get no
    span: their duration is unrelated to the work. Nor do verbs of the remote engine without a
    parent span.
    """

    def __init__(self, operation: Operation, services: EndpointServices) -> None:
        # OpenTelemetry is optional, and slow to import.
        from holdfast.tracing.spans import request_span, set_response_status

        super().__init__(operation, services)
        self._request_span = request_span
        count_request = self._count_request

        def count_and_trace(status: int, ms: float) -> None:
            set_response_status(status)
            count_request(status, ms)

        self._count_request = count_and_trace

    async def __call__(
        self, scope: AsgiScope, receive: Receive, send: Send, arguments: dict[str, Any]
    ) -> None:
        operation = self.operation
        headers = {
            _TRACE_HEADERS[name]: value.decode("latin-1")
            for name, value in scope["headers"]
            if name in _TRACE_HEADERS
        }
        untraced_verb = operation.internal and TRACEPARENT not in headers
        if untraced_verb or operation.needs is None or operation.waits or operation.streams:
            await super().__call__(scope, receive, send, arguments)
            return
        with self._request_span(operation.method, operation.path, headers):
            await super().__call__(scope, receive, send, arguments)


def _is_act(operation: Operation) -> bool:
    """True for an operator's act, as opposed to the work of programs and workers."""
    scopes = operation.needs or ()
    return operation.method != "GET" and (Scope.OPERATE in scopes or Scope.ADMIN in scopes)


def _kind_of(operation: Operation) -> RequestKind:
    if operation.streams:
        return RequestKind.STREAM
    if operation.waits:
        return RequestKind.WAIT
    is_probe = operation.needs is None and operation.method == "GET" and not operation.is_page
    return RequestKind.OPEN if is_probe else RequestKind.REQUEST


@contextlib.contextmanager
def end_on_disconnect(receive: Receive, ticket: Ticket) -> Iterator[asyncio.Future[None]]:
    """End the request when its client disconnects."""
    finished = False

    def end(disconnect: asyncio.Future[None]) -> None:
        if not finished and not disconnect.cancelled():
            ticket.end(EndReason.DISCONNECTED)

    disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
    disconnect.add_done_callback(end)
    try:
        yield disconnect
    finally:
        finished = True
        disconnect.cancel()
