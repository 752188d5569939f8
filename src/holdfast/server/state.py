"""What all requests of one server share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from holdfast.alerts import Alerter
from holdfast.app import Holdfast
from holdfast.server.audit import Audit
from holdfast.server.namespaces import Make, Namespaces
from holdfast.server.quotas import Quotas
from holdfast.server.readiness import Readiness, is_whole
from holdfast.server.settings import ServerSettings
from holdfast.server.tokens import Tokens
from holdfast.upkeep import wall_ms


@dataclass(slots=True, kw_only=True)
class Server:
    """`app` is the namespace `default`'s. `stopping` is set when streams and waits shall end.
    `make` opens another namespace; else it is looked for in the same place."""

    app: Holdfast
    settings: ServerSettings = field(default_factory=ServerSettings)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    readiness: Readiness = field(default_factory=Readiness)
    make: Make | None = None
    alerters: dict[str, Alerter] = field(default_factory=dict)
    """Of the namespaces whose alerts this server looks after."""
    namespaces: Namespaces = field(init=False)
    tokens: Tokens = field(init=False)
    _quotas: dict[str, Quotas] = field(init=False, default_factory=dict)
    _audits: dict[str, Audit] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.namespaces = Namespaces(self.app, self.make)
        self.tokens = Tokens(lambda: self.app.engine, wall_ms, lambda: is_whole(self.app))

    def quotas_of(self, namespace: str, app: Holdfast) -> Quotas:
        known = self._quotas.get(namespace)
        if known is None:
            known = Quotas(lambda: app.engine, is_whole=lambda: is_whole(app))
            self._quotas[namespace] = known
        return known

    def audit_of(self, namespace: str, app: Holdfast) -> Audit:
        return self._audits.setdefault(namespace, Audit(lambda: app.engine, wall_ms))
