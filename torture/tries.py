"""The remote engine sends again what is safe to repeat. A history must have each try: a settle that
was applied, but whose answer was lost, is answered `lost` when the job has moved on meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from holdfast.core.verdict import Amendment
from holdfast.engines.remote import RemoteEngine
from holdfast.engines.remote.connection import Answer, Cut
from holdfast.errors import OutcomeUnknown
from holdfast.testing.history import Recorded

T = TypeVar("T")
_on_cut: ContextVar[Callable[[], None] | None] = ContextVar("on_cut", default=None)


class Told(RemoteEngine):
    """Tells whoever made the call of a try that may have been heard, before it makes another."""

    async def open(self) -> None:
        already = self._client is not None
        await super().open()
        client = self._client
        if client is None or already:
            return
        pool = client._pool
        ask = pool.ask

        async def told(request: bytes, **options: Any) -> Answer:
            try:
                return await ask(request, **options)
            except Cut:
                tell = _on_cut.get()
                if tell is not None:
                    tell()
                raise

        pool.ask = told  # type: ignore[method-assign]


class EachTry(Recorded):
    """A try in doubt ends as unknown, and the next one is a call of its own."""

    async def _told(
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
