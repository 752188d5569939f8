"""Records each request of the remote engine as a separate call of the history.

The remote engine repeats safe requests by itself. Each repeat must be in the history: if a settle
was applied but its response was lost, the repeat may return `lost` because the job has moved on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from holdfast.conformance.history import Recorded
from holdfast.core.verdict import Amendment
from holdfast.engines.remote import RemoteEngine
from holdfast.engines.remote.connection import ConnectionCut, HttpReply
from holdfast.errors import OutcomeUnknown

T = TypeVar("T")
_on_cut: ContextVar[Callable[[], None] | None] = ContextVar("on_cut", default=None)


class NotifyingRemoteEngine(RemoteEngine):
    """Calls the `_on_cut` callback of the current call when a request may have been received."""

    async def open(self) -> None:
        already = self._client is not None
        await super().open()
        client = self._client
        if client is None or already:
            return
        pool = client._pool
        ask = pool.ask

        async def ask_and_notify(request: bytes, **options: Any) -> HttpReply:
            try:
                return await ask(request, **options)
            except ConnectionCut:
                notify = _on_cut.get()
                if notify is not None:
                    notify()
                raise

        pool.ask = ask_and_notify  # type: ignore[method-assign]


class RecordedRequests(Recorded):
    """Ends a call whose outcome is unknown, and starts a new call for the repeated request."""

    async def _recorded(
        self, op: str, argument: object, call: Awaitable[T], amendment: Amendment | None = None
    ) -> T:
        number = self._journal.begin(op, argument, amendment)

        def cut() -> None:
            nonlocal number
            self._journal.end(number, op, argument, OutcomeUnknown("the connection was cut"))
            number = self._journal.begin(op, argument, amendment)

        before = _on_cut.set(cut)
        try:
            answer = await call
        except BaseException as error:
            self._journal.end(number, op, argument, error)
            raise
        finally:
            _on_cut.reset(before)
        self._journal.end(number, op, argument, answer)
        return answer
