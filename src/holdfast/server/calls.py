"""One request on its way: who asks, for which application, and whether they are still there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from holdfast.app import Holdfast
from holdfast.engines.base import Engine
from holdfast.errors import HoldfastError
from holdfast.server.audit import Act, Noted
from holdfast.server.callers import Caller
from holdfast.server.refusals import BadRequest, ClientLeft, TooLarge
from holdfast.server.state import Server

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

HEADERS_MAX = 100
_ONCE = (
    *(b"host", b"authorization", b"holdfast-namespace", b"origin"),
    *(b"content-type", b"idempotency-key"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`engine` is the application's, seen through what the caller may do."""

    server: Server
    app: Holdfast
    engine: Engine
    caller: Caller
    headers: Mapping[str, str]
    peer: str = ""

    def noting(self, what: str, on: str) -> AbstractAsyncContextManager[Noted]:
        """Around an operator's act that the engine takes for a producer's, or never hears of."""
        who = self.caller
        act = Act(at=0, who=who.name, token=who.token, peer=self.peer, what=what, on=on)
        return self.server.audit_of(who.namespace, self.app).doing(act)

    async def is_good(self) -> bool:
        """Whether the caller's token is good still: to be asked by what lasts, before it tells
        more."""
        if not self.caller.token:
            return True
        try:
            await self.server.tokens.require(self.caller.token)
        except HoldfastError:
            return False
        return True


class Headers(Mapping[str, str]):
    """By their names in small letters. Decoded when asked for: most never are."""

    __slots__ = ("_raw",)

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        self._raw = dict(raw)
        if len(self._raw) != len(raw):
            _refuse_repeated(raw)
        if len(raw) > HEADERS_MAX:
            raise TooLarge(f"there are {len(raw)} headers, at most {HEADERS_MAX} are read")

    def __getitem__(self, name: str) -> str:
        return self._raw[name.encode("latin-1")].decode("latin-1")

    def get(self, name: str, default: Any = None) -> Any:
        value = self._raw.get(name.encode("latin-1"))
        return default if value is None else value.decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.encode("latin-1") in self._raw

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def raw(self, name: bytes) -> bytes | None:
        return self._raw.get(name)


def _refuse_repeated(raw: list[tuple[bytes, bytes]]) -> None:
    """Which of two a proxy believed is not known here."""
    names = [name for name, _value in raw]
    for name in _ONCE:
        if names.count(name) > 1:
            raise BadRequest(f"the header {name.decode()} is there more than once")


async def read_body(receive: Receive, *, most: int, hold: Callable[[int], None]) -> bytes:
    """The whole body, or an error as soon as it is known to be too large. `hold` is told how much
    is in hand, and may refuse."""
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientLeft
        part = event.get("body", b"")
        more = event.get("more_body", False)
        size += len(part)
        if size > most:
            raise TooLarge(f"the body is larger than {most} bytes")
        parts.append(part)
        hold(size)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def until_left(receive: Receive) -> None:
    """Returns when the caller has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
