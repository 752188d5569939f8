"""The applications of one server, one for each namespace: opened when first asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from holdfast.app import Holdfast
from holdfast.engines.url import with_namespace
from holdfast.errors import ConfigError, EngineClosed, HoldfastError, Overloaded

DEFAULT = "default"
HEADER = "holdfast-namespace"
OPEN_MAX = 100

_log = logging.getLogger("holdfast.server")

Make = Callable[[str], Holdfast]


class Namespaces:
    """`app` is open, and the one of `default`; whoever opened it closes it. `make` gives those of
    the others; else they are in the same place. `opened` hears of each, as of `app`."""

    def __init__(self, app: Holdfast, make: Make | None = None, *, most: int = OPEN_MAX) -> None:
        self._app = app
        self._make = make or self._beside
        self._most = most
        self._open = {DEFAULT: app}
        self._opening: dict[str, asyncio.Task[Holdfast]] = {}
        self._closed = False
        self.opened: list[Callable[[str, Holdfast], None]] = []

    def all(self) -> dict[str, Holdfast]:
        """Those that are open, by name."""
        return dict(self._open)

    def peek(self, name: str) -> Holdfast | None:
        return self._open.get(name)

    async def get(self, name: str) -> Holdfast:
        """The application of a namespace that the caller may use. Whoever leaves while it is being
        opened leaves it to the next."""
        known = self._open.get(name)
        if known is not None:
            return known
        opening = self._opening.get(name)
        if opening is None:
            if self._closed:
                raise EngineClosed("the server is stopping")
            if len(self._open) + len(self._opening) >= self._most:
                raise Overloaded(f"{self._most} namespaces are open, which is the most at once")
            opening = asyncio.create_task(self._start(name))
            self._opening[name] = opening
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """All but the one that was given."""
        self._closed = True
        for opening in list(self._opening.values()):
            await asyncio.wait([opening])
        for name in [name for name in self._open if name != DEFAULT]:
            try:
                await self._open.pop(name).close()
            except HoldfastError as error:
                _log.warning("namespace %s did not close well: %s", name, error)

    async def _start(self, name: str) -> Holdfast:
        try:
            app = self._make(name)
            try:
                await app.open()
            except BaseException:
                await app.close()
                raise
            self._open[name] = app
            for hear in self.opened:
                hear(name, app)
            return app
        finally:
            self._opening.pop(name, None)

    def _beside(self, name: str) -> Holdfast:
        if self._app.url is None:
            raise ConfigError("this server has one namespace: it was given an engine and no URL")
        return Holdfast(with_namespace(self._app.url, name))
