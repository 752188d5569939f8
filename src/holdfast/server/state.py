"""State that all requests of one server share: its open namespaces, tokens, quotas and audits, and
whether its store is ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from holdfast.alerts.alerter import Alerter
from holdfast.app.application import Holdfast
from holdfast.engines.extras import Partitioned, extra
from holdfast.engines.registry import with_namespace
from holdfast.errors import ConfigError, EngineClosed, EngineUnavailable, HoldfastError, Overloaded
from holdfast.ops.audit import Audit
from holdfast.process import wall_ms
from holdfast.server.access.peers import LocalUsers
from holdfast.server.access.quotas import QuotaEnforcer
from holdfast.server.access.redaction import Redaction
from holdfast.server.access.tokens import TokenAuthenticator
from holdfast.server.settings import ServerSettings

DEFAULT_NAMESPACE = "default"
NAMESPACE_HEADER = "holdfast-namespace"
NAMESPACES_MAX = 100

_PROBE_AGE_S_MAX = 1.0
_PROBE_TIMEOUT_S = 5.0

AppFactory = Callable[[str], Holdfast]

_log = logging.getLogger("holdfast.server")


class PartitionState(msgspec.Struct, frozen=True, kw_only=True):
    """A partition by its number in the list, from 1: its name may reveal too much. `out` is the
    seconds since it was shut out, and `code` the reason.
    """

    number: int
    out: float | None = None
    code: str | None = None


class Readiness:
    """Whether the store answers. It is asked at most once a second, since probes need no token."""

    def __init__(self) -> None:
        self._probed_at = float("-inf")
        self._probe: asyncio.Task[HoldfastError | None] | None = None

    async def trouble(self, app: Holdfast) -> HoldfastError | None:
        """The error of the store; None if it answers."""
        now = asyncio.get_running_loop().time()
        if self._probe is None or (
            self._probe.done() and now - self._probed_at >= _PROBE_AGE_S_MAX
        ):
            self._probed_at = now
            self._probe = asyncio.create_task(_probe(app))
        return await asyncio.shield(self._probe)


@dataclass(slots=True, kw_only=True)
class ServerState:
    """`app` is the application of the namespace `default`. `stopping` is set when streams and waits
    must end. `make` creates the application of another namespace; without it, all are in the same
    store. `local_users` need no token."""

    app: Holdfast
    settings: ServerSettings = field(default_factory=ServerSettings)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    readiness: Readiness = field(default_factory=Readiness)
    make: AppFactory | None = None
    local_users: LocalUsers | None = None
    alerters: dict[str, Alerter] = field(default_factory=dict)
    """The alerters of this server, by namespace."""
    namespaces: Namespaces = field(init=False)
    tokens: TokenAuthenticator = field(init=False)
    _quotas: dict[str, QuotaEnforcer] = field(init=False, default_factory=dict)
    _redactions: dict[str, Redaction] = field(init=False, default_factory=dict)
    _audits: dict[str, Audit] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.namespaces = Namespaces(self.app, self.make)
        self.tokens = TokenAuthenticator(
            lambda: self.app.engine, wall_ms, lambda: is_fully_readable(self.app)
        )

    def quotas_of(self, namespace: str, app: Holdfast) -> QuotaEnforcer:
        """The quotas of a namespace."""
        known = self._quotas.get(namespace)
        if known is None:
            known = QuotaEnforcer(lambda: app.engine, is_whole=lambda: is_fully_readable(app))
            self._quotas[namespace] = known
        return known

    def redaction_of(self, namespace: str, app: Holdfast) -> Redaction:
        """The values of a namespace that are hidden from callers without `operate`."""
        known = self._redactions.get(namespace)
        if known is None:
            known = Redaction(lambda: app.engine, is_whole=lambda: is_fully_readable(app))
            self._redactions[namespace] = known
        return known

    def audit_of(self, namespace: str, app: Holdfast) -> Audit:
        """The audit of a namespace."""
        return self._audits.setdefault(namespace, Audit(lambda: app.engine, wall_ms))


class Namespaces:
    """`app` is the open application of `default`; its owner closes it. `make` creates those of the
    others; without it they are in the same store. `opened` callbacks get each new application."""

    def __init__(
        self, app: Holdfast, make: AppFactory | None = None, *, open_max: int = NAMESPACES_MAX
    ) -> None:
        self._app = app
        self._make = make or self._in_same_store
        self._open_max = open_max
        self.apps: dict[str, Holdfast] = {DEFAULT_NAMESPACE: app}
        """The open applications, by namespace."""
        self._opening: dict[str, asyncio.Task[Holdfast]] = {}
        self._closed = False
        self.opened: list[Callable[[str, Holdfast], None]] = []

    async def get(self, name: str) -> Holdfast:
        """The application of a namespace, opened if needed. Cancelling a caller does not cancel the
        opening."""
        known = self.apps.get(name)
        if known is not None:
            return known
        opening = self._opening.get(name)
        if opening is None:
            if self._closed:
                raise EngineClosed("the server is stopping")
            if len(self.apps) + len(self._opening) >= self._open_max:
                raise Overloaded(f"{self._open_max} namespaces are open, the maximum of a server")
            opening = asyncio.create_task(self._start(name))
            self._opening[name] = opening
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Close all applications but the one that was given."""
        self._closed = True
        for opening in list(self._opening.values()):
            await asyncio.wait([opening])
        for name in [name for name in self.apps if name != DEFAULT_NAMESPACE]:
            try:
                await self.apps.pop(name).close()
            except HoldfastError as error:
                _log.warning("closing the namespace %s failed: %s", name, error)

    async def _start(self, name: str) -> Holdfast:
        try:
            app = self._make(name)
            try:
                await app.open()
            except BaseException:
                await app.close()
                raise
            self.apps[name] = app
            for on_opened in self.opened:
                on_opened(name, app)
            return app
        finally:
            self._opening.pop(name, None)

    def _in_same_store(self, name: str) -> Holdfast:
        if self._app.url is None:
            raise ConfigError(
                "this server has only one namespace, because it was created with an engine"
                " instead of a URL"
            )
        return Holdfast(with_namespace(self._app.url, name))


def partitions_of(app: Holdfast) -> list[PartitionState] | None:
    """The partitions of the store; None if it has none."""
    partitioned = extra(app.engine, Partitioned)
    if partitioned is None:
        return None
    return [
        PartitionState(
            number=number,
            out=None if view.out_ms is None else view.out_ms / 1000,
            code=view.code or None,
        )
        for number, view in enumerate(partitioned.partitions(), 1)
    ]


def is_fully_readable(app: Holdfast) -> bool:
    """True if no partition of the store is shut out."""
    partitioned = extra(app.engine, Partitioned)
    return partitioned is None or all(view.out_ms is None for view in partitioned.partitions())


async def _probe(app: Holdfast) -> HoldfastError | None:
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            await app.queues(counts=False)
    except TimeoutError:
        return EngineUnavailable(f"the store did not answer within {_PROBE_TIMEOUT_S:g} s")
    except HoldfastError as error:
        return error
    return None
