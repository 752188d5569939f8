"""The one check that every request passes, closed by default.

Host and Origin first, so that no web page can use a server that trusts its own machine; then who
asks, whether they may, and where. Handlers get an engine that goes on checking.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache, partial

from msgspec.structs import replace

from holdfast.app import Holdfast
from holdfast.core import limits
from holdfast.errors import Forbidden, Unauthenticated
from holdfast.server.callers import ANYBODY, NOBODY, Caller
from holdfast.server.calls import Call
from holdfast.server.guarded import Guarded, Watch
from holdfast.server.namespaces import DEFAULT, HEADER
from holdfast.server.operations import Operation
from holdfast.server.state import Server
from holdfast.server.tokens import EVERYWHERE

_VIEWS_MAX = 1_000
_FORWARDED = (
    *("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"),
    *(f"x-forwarded-{name}" for name in ("for", "host", "port", "proto", "server")),
)
"""What proxies add, each its own."""
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]{0,5})?", re.ASCII)


class Door:
    """Who comes in, and to which application."""

    def __init__(self, server: Server) -> None:
        self._server = server
        settings = server.settings
        self._is_open = settings.on_loopback and not settings.auth_on
        self._hosts = {host.lower() for host in (*settings.hosts, settings.host)}
        self._origins = {origin.lower() for origin in settings.origins}
        self._views: dict[tuple[str, str, str], Guarded] = {}

    async def admit(
        self, operation: Operation, headers: Mapping[str, str], peer: str | None
    ) -> Call:
        self.check_place(headers)
        caller = await self._caller(headers, peer)
        needs = operation.needs
        if needs is not None and needs not in caller.scopes:
            if caller is NOBODY:
                raise Unauthenticated("a token is needed: send it as Authorization: Bearer hf_…")
            raise Forbidden(f"this needs the scope {needs.value}, which the token does not have")
        caller = await self._placed(caller, headers)
        namespaces = self._server.namespaces
        app = namespaces.peek(caller.namespace) or await namespaces.get(caller.namespace)
        return Call(
            server=self._server,
            app=app,
            engine=self._view(app, caller, peer or ""),
            caller=caller,
            headers=headers,
            peer=peer or "",
        )

    def check_place(self, headers: Mapping[str, str]) -> None:
        """Raise unless the server was called by a name of its own, and from no strange page."""
        host = headers.get("host")
        if host is None:
            # Probes of load balancers: no page can leave it out, so that nobody is led astray.
            if self._is_open:
                raise Forbidden("the request has no Host: send one, such as localhost")
        elif not self._is_own(host):
            raise Forbidden(
                f"this server does not answer to the name {host[:80]!r}: add it with --allow-host"
            )
        origin = headers.get("origin")
        if origin is None:
            site = headers.get("sec-fetch-site", "none")
            if site in ("none", "same-origin") or headers.get("sec-fetch-mode") == "navigate":
                return
        elif origin.lower() in self._origins or origin.partition("://")[2] == host:
            return
        raise Forbidden("pages of this origin may not use the server: add it with --allow-origin")

    async def _caller(self, headers: Mapping[str, str], peer: str | None) -> Caller:
        given = headers.get("authorization")
        if given is not None:
            scheme, _, text = given.partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthenticated("tokens are sent as Authorization: Bearer hf_…")
            return await self._server.tokens.authenticate(text.strip())
        is_near = peer is not None and is_loopback(peer)
        if self._is_open and is_near and not any(name in headers for name in _FORWARDED):
            return ANYBODY
        return NOBODY

    async def _placed(self, caller: Caller, headers: Mapping[str, str]) -> Caller:
        """The caller in one namespace: the token's, or the one that the header names, if the token
        is for all of them or there is none."""
        named = headers.get(HEADER)
        if caller is NOBODY:
            return caller
        is_free = caller is ANYBODY or caller.namespace == EVERYWHERE
        if named is None:
            everywhere = caller.namespace == EVERYWHERE
            return replace(caller, namespace=DEFAULT) if everywhere else caller
        if not is_free:
            if named != caller.namespace:
                raise Forbidden(f"the token is for the namespace {caller.namespace}")
            return caller
        if not limits.NAMESPACE.match(named) or not await self._is_served(caller, named):
            raise Forbidden(f"there is no namespace {named[:80]!r} here: add it with --namespace")
        return replace(caller, namespace=named)

    async def _is_served(self, caller: Caller, name: str) -> bool:
        if name == DEFAULT or name in self._server.settings.namespaces:
            return True
        return caller is not ANYBODY and name in await self._server.tokens.namespaces()

    def _view(self, app: Holdfast, caller: Caller, peer: str) -> Guarded:
        """Kept, because nearly every request is from a caller who was here before."""
        key = (caller.token or caller.name, caller.namespace, peer)
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= _VIEWS_MAX:
                self._views.clear()
            alive = partial(self._server.tokens.require, caller.token) if caller.token else None
            watch = Watch(
                alive=alive,
                quotas=self._server.quotas_of(caller.namespace, app),
                audit=self._server.audit_of(caller.namespace, app),
                store=app.home.store,
                peer=peer,
            )
            view = self._views[key] = Guarded(app.engine, caller, watch)
        return view

    def _is_own(self, host: str) -> bool:
        name = name_of(host)
        if not name:
            return False
        if name in self._hosts or name == "localhost" or is_loopback(name):
            return True
        # An address is never looked up, so nobody can make it mean another machine.
        return not self._is_open and _address(name) is not None


@lru_cache(maxsize=1_000)
def name_of(host: str) -> str:
    """Without the port, in small letters; "", which nobody is called, for what is no host."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2] or "").lower()


@lru_cache(maxsize=1_000)
def is_loopback(host: str) -> bool:
    address = _address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return host == "localhost" if address is None else address.is_loopback


@lru_cache(maxsize=1_000)
def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
