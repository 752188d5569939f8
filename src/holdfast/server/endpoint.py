"""One operation as the web server calls it: who asks, what they say, the answer or the error.

A request runs in the task that the web server made for it. What ends it from outside (it is late,
its caller left, the server stops) cancels that task and says why on its ticket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.errors import HoldfastError, OutcomeUnknown, UsageError
from holdfast.server.answers import (
    Answers,
    Reply,
    begin_stream,
    cut_off,
    end_stream,
    send_part,
    send_whole,
    was_left,
)
from holdfast.server.asking import Asking
from holdfast.server.calls import AsgiScope, Call, Receive, Send, until_left
from holdfast.server.door import Door
from holdfast.server.idempotency import HEADER, NOTHING_DONE, Keys
from holdfast.server.operations import Operation
from holdfast.server.pressure import Kind, Pressure, Ticket, Why
from holdfast.server.problems import Unexpected
from holdfast.server.refusals import ClientLeft, SlowRequest, Stopping, TimedOut
from holdfast.telemetry.meter import Meter

_log = logging.getLogger("holdfast.server")
_KEY_HEADER = HEADER.lower()

Undo = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all operations of a server have in common."""

    door: Door
    pressure: Pressure
    keys: Keys
    meter: Meter
    body_max: int


class Endpoint:
    """Answers one operation, for the names its path was found with."""

    def __init__(self, operation: Operation, shared: Shared) -> None:
        self.operation = operation
        self._handler = operation.handler
        self._pressure = pressure = shared.pressure
        self._keys = shared.keys
        self._requested = partial(shared.meter.requested, operation.name)
        self._kind = _kind_of(operation)
        self._asking = Asking(operation, shared.door, pressure, body_max=shared.body_max)
        self._answers = Answers(operation)

    async def __call__(
        self, scope: AsgiScope, receive: Receive, send: Send, given: dict[str, Any]
    ) -> None:
        begun = time.perf_counter()
        try:
            ticket = self._pressure.begin(self._kind)
        except HoldfastError as error:
            reply = self._answers.bad(error)
            self._requested(reply.status, 0.0)
            await send_whole(send, reply, head=scope["method"] == "HEAD")
            return
        try:
            if self._kind is Kind.STREAM:
                await self._stream(scope, receive, send, given, ticket)
            else:
                reply = await self._reply(scope, receive, given, ticket)
                self._requested(reply.status, (time.perf_counter() - begun) * 1000)
                await self._send(send, reply, ticket, head=scope["method"] == "HEAD")
                if ticket.undo is not None and was_left(send):
                    await ticket.undo()
        except ClientLeft:
            pass
        except asyncio.CancelledError:
            if ticket.why is None:
                raise
            # It was being sent: whoever does not read it is not waited for.
            ticket.heed()
            cut_off(send)
            # The web server hears of it before it looks whether the answer was complete.
            await asyncio.sleep(0)
            if ticket.undo is not None:
                await ticket.undo()
        finally:
            self._pressure.finish(ticket)

    async def _reply(
        self, scope: AsgiScope, receive: Receive, given: dict[str, Any], ticket: Ticket
    ) -> Reply:
        try:
            call, body = await self._asking.read(scope, receive, given, ticket)
            key = None if self.operation.repeatable else call.headers.get(_KEY_HEADER)
            if key is None or self._is_repeatable(given):
                reply, ticket.undo = await self._made(call, given, receive, ticket)
                return reply
            path: bytes = scope.get("raw_path") or scope["path"].encode()
            asked = b"\n".join((scope["method"].encode(), path, scope["query_string"], body))
            make = partial(self._refused_or_made, call, given, receive, ticket)
            return await self._keys.once(call, key, asked, make)
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 (told as it may)
            return self._bad(error, ticket)

    def _is_repeatable(self, given: dict[str, Any]) -> bool:
        by_body = self.operation.repeatable_if
        return by_body is not None and by_body(given["body"])

    async def _send(self, send: Send, reply: Reply, ticket: Ticket, *, head: bool) -> None:
        pressure = self._pressure
        pressure.sending(ticket)
        pressure.hold(ticket, len(reply.body), refuse=False)
        await send_whole(send, reply, head=head, still_reading=lambda: pressure.sending(ticket))

    async def _made(
        self, call: Call, given: dict[str, Any], receive: Receive, ticket: Ticket
    ) -> tuple[Reply, Undo | None]:
        """The answer, and what takes it back if nobody is there to read it."""
        if self._kind is not Kind.WAIT:
            return self._answers.good(await self._handler(call, **given)), None
        with _left(receive, ticket) as watch:
            answer = await self._handler(call, **given)
            undo = self.operation.undo and partial(self.operation.undo, call, answer)
            # Nothing may come between this look and the sending.
            if not watch.done():
                return self._answers.good(answer), undo
        if undo is not None:
            await undo()
        raise ClientLeft

    async def _refused_or_made(
        self, call: Call, given: dict[str, Any], receive: Receive, ticket: Ticket
    ) -> Reply:
        """A refusal is an answer like another, which is the same when it is asked for again. So
        nothing is taken back of what can be asked for."""
        try:
            return (await self._made(call, given, receive, ticket))[0]
        except UsageError as error:
            if isinstance(error, NOTHING_DONE):
                raise
            return self._answers.bad(error)
        except asyncio.CancelledError:
            why = ticket.why
            if self._kind is not Kind.WAIT or why not in (Why.LEFT, Why.STOPPING):
                raise
            # What waits has let go of what it took when it is ended so.
            ticket.heed()
            raise self._ended(why, ticket) from None

    async def _stream(
        self,
        scope: AsgiScope,
        receive: Receive,
        send: Send,
        given: dict[str, Any],
        ticket: Ticket,
    ) -> None:
        """A part at a time, the next when the last has gone out: nothing is kept for a reader."""
        pressure = self._pressure
        head = scope["method"] == "HEAD"
        begun = False
        try:
            call, _ = await self._asking.read(scope, receive, given, ticket)
            async with contextlib.aclosing(self._handler(call, **given)) as parts:
                with _left(receive, ticket):
                    part = await anext(parts, b"")
                    begun = True
                    self._requested(200, 0.0)
                    await begin_stream(send, self._answers.good_headers)
                    while part and not head:
                        pressure.sending(ticket)
                        await send_part(send, part)
                        pressure.sent(ticket)
                        part = await anext(parts, b"")
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 (it is told as it may)
            late = ticket.why is Why.LATE
            reply = self._bad(error, ticket)
            if not begun:
                self._requested(reply.status, 0.0)
                await send_whole(send, reply, head=head)
                return
            if late:
                cut_off(send)
                await asyncio.sleep(0)
                return
        pressure.sending(ticket)
        await end_stream(send)

    def _bad(self, error: BaseException, ticket: Ticket) -> Reply:
        """What to say of it; raises when there is nobody to say it to."""
        why = ticket.why
        ticket.heed()
        match error:
            case asyncio.CancelledError():
                if why is None:
                    raise error
                return self._answers.bad(self._ended(why, ticket))
            case ClientLeft():
                raise error
            case HoldfastError():
                return self._answers.bad(error)
            case _:
                # What is not expected may say anything: it goes to the log, not to the client.
                where = f"{self.operation.method} {self.operation.path}"
                _log.error("%s failed", where, exc_info=error)
                text = "the server failed in a way it did not expect: see its log"
                return self._answers.bad(Unexpected(text))

    def _ended(self, why: Why, ticket: Ticket) -> HoldfastError:
        if why is Why.LEFT:
            raise ClientLeft
        if why is Why.STOPPING:
            return Stopping("the server is stopping")
        if ticket.reading:
            return SlowRequest("the request did not arrive in time")
        if self.operation.method == "GET":
            return TimedOut("it took longer than a request may: ask for less at a time")
        return OutcomeUnknown("it took longer than a request may, and may still happen")


def _kind_of(operation: Operation) -> Kind:
    if operation.streams:
        return Kind.STREAM
    if operation.waits:
        return Kind.WAIT
    return Kind.OPEN if operation.needs is None else Kind.REQUEST


@contextlib.contextmanager
def _left(receive: Receive, ticket: Ticket) -> Iterator[asyncio.Future[None]]:
    """Ends the request when its caller has gone."""
    over = False

    def tell(watch: asyncio.Future[None]) -> None:
        if not over and not watch.cancelled():
            ticket.end(Why.LEFT)

    watch = asyncio.ensure_future(until_left(receive))
    watch.add_done_callback(tell)
    try:
        yield watch
    finally:
        over = True
        watch.cancel()
