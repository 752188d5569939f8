"""Authenticates a request and picks its namespace. Closed by default.

Host and Origin are checked first, so that no web page can use a server that trusts its own
machine; then the token, its scopes and the namespace. Handlers get an `AuthorizedEngine`, which
checks every verb again.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import lru_cache, partial

from msgspec import Struct
from msgspec.structs import replace

from holdfast.app.application import Holdfast
from holdfast.core import bounds
from holdfast.engines.base import Engine
from holdfast.errors import Forbidden, HoldfastError, ReadOnly, Unauthenticated
from holdfast.ops.audit import AuditedChange, AuditEntry
from holdfast.ops.tokens import EVERYWHERE, is_access_key_id
from holdfast.process import wall_ms
from holdfast.server.access.authorized_engine import (
    READ_ONLY_TEXT,
    AccessControls,
    AuthorizedEngine,
)
from holdfast.server.access.caller import ANONYMOUS, LOCAL_CALLER, Caller, Scope, missing_scope
from holdfast.server.access.sessions import session_text
from holdfast.server.access.sigv4 import (
    Credential,
    RequestSignature,
    SignedRequest,
    credential_of,
    is_signed,
    not_signed,
    signature_of,
)
from holdfast.server.state import DEFAULT_NAMESPACE, NAMESPACE_HEADER, ServerState

_ENGINES_MAX = 1_000
_PROXY_HEADERS = frozenset(
    (
        *("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"),
        *(f"x-forwarded-{name}" for name in ("for", "host", "port", "proto", "server")),
    )
)
"""Headers that proxies add. A request with one of them does not come from this machine."""
_FRAMES = ("iframe", "frame", "embed", "object", "fencedframe")
_TOKEN_NEEDED = "a token is needed: send Authorization: Bearer hf_…"  # noqa: S105 (an error text)
_TOKEN_NEEDED_OPEN = (
    f"{_TOKEN_NEEDED}; without one, this server admits only direct connections of its own user and"
    " of root"
)
_KEY_NEEDED = "the request must be signed with an access key: holdfast token create --aws"
_KEY_NEEDED_OPEN = (
    f"{_KEY_NEEDED}; without a signature, this server admits only direct connections of its own"
    " user and of root"
)
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]{0,5})?", re.ASCII)


class ApiCall(Struct, frozen=True, kw_only=True):
    """An admitted request: its caller, the application of its namespace, and the engine restricted
    to what the caller may do."""

    server: ServerState
    app: Holdfast
    engine: Engine
    caller: Caller
    headers: Mapping[str, str]
    peer: str = ""
    is_own_user: bool = False
    is_secure: bool = False
    """True if the request came over HTTPS, to this server or to a trusted proxy."""

    @property
    def is_direct(self) -> bool:
        """True if the request comes from this machine, and not through a proxy on it."""
        return _is_direct(self.headers, self.peer)

    def noting(self, what: str, on: str) -> AbstractAsyncContextManager[AuditedChange]:
        """Write an operator's act to the audit log if the engine does not recognize it as one."""
        caller = self.caller
        act = AuditEntry(
            at=0, who=caller.name, token=caller.token, peer=self.peer, what=what, on=on
        )
        return self.server.audit_of(caller.namespace, self.app).doing(act)

    async def is_good(self) -> bool:
        """True while the caller's token or session is valid. Streams check it before each part they
        send."""
        if not self.caller.credential:
            return True
        try:
            await self.server.tokens.require(self.caller.credential)
        except HoldfastError:
            return False
        return True


class UnverifiedCaller(Struct, frozen=True):
    """The caller that a request of an AWS client names: call `verify` once the body has arrived.
    `credential` is the one that the request states, even where it is not verified."""

    caller: Caller
    credential: Credential | None = None
    signature: RequestSignature | None = None
    secret: str = ""

    def __repr__(self) -> str:
        """Without the secret."""
        return f"UnverifiedCaller(credential={self.credential}, signature={self.signature})"

    def verify(self, body: bytes) -> Caller:
        """The caller, now authenticated. Raises SignatureRefused."""
        if self.signature is not None:
            self.signature.verify(body, self.secret)
        return self.caller


class Admission:
    """Turns the headers and the address of a request into an `ApiCall`, or refuses it. Signatures
    expire by `wall_ms`."""

    def __init__(self, server: ServerState, wall_ms: Callable[[], int] = wall_ms) -> None:
        self._server = server
        self._wall_ms = wall_ms
        settings = server.settings
        self._is_open = settings.on_loopback and not settings.auth_on
        self._admits_all = settings.auth is False
        self._hosts = {host.lower() for host in (*settings.hosts, settings.host)}
        self._origins = {origin.lower() for origin in settings.origins}
        self._engines: dict[tuple[str, str, str], AuthorizedEngine] = {}

    async def admit(
        self,
        needs: tuple[Scope, ...] | None,
        headers: Mapping[str, str],
        peer: str | None,
        *,
        reads: bool,
        is_own_user: bool,
        is_secure: bool = False,
        changes: bool = False,
    ) -> ApiCall:
        """Admit a request that needs any of these scopes, or none; `reads` is true for GET and
        HEAD, `is_own_user` for a connection of the server's own user or of root, `is_secure` for
        HTTPS, and `changes` for an operation that a read-only server refuses. Raises
        Unauthenticated or Forbidden."""
        self.check_origin(headers, reads=reads)
        caller = None
        if "cookie" in headers and "authorization" not in headers:
            may_be_plain = is_own_user and _is_direct(headers, peer)
            if is_secure or may_be_plain:
                caller = await self._of_session(headers, is_secure=is_secure, reads=reads)
        if caller is None:
            caller = await self._authenticate(headers, peer, is_own_user=is_own_user)
        if needs is not None and caller is ANONYMOUS:
            raise Unauthenticated(_TOKEN_NEEDED_OPEN if self._is_open else _TOKEN_NEEDED)
        named = headers.get(NAMESPACE_HEADER)
        call = await self.admit_caller(
            caller,
            needs,
            headers,
            peer,
            namespace=named,
            is_own_user=is_own_user,
            is_secure=is_secure,
        )
        if changes:
            self.check_read_only()
        return call

    def check_read_only(self) -> None:
        """Raise ReadOnly on a server that changes nothing."""
        if self._server.settings.read_only:
            raise ReadOnly(READ_ONLY_TEXT)

    async def identify(
        self,
        request: SignedRequest,
        headers: Mapping[str, str],
        peer: str | None,
        *,
        is_own_user: bool,
    ) -> UnverifiedCaller:
        """The caller that a request of an AWS client names, before its body is read. Raises
        SignatureRefused, Unauthenticated or Forbidden.

        Where no token is needed, any credentials are accepted, but an access key of Holdfast is
        verified and counts, as a token does.
        """
        # A link may lead to a page, but must not act on a queue, not by GET either.
        self.check_origin(headers, reads=False)
        if not is_signed(request):
            caller = await self._authenticate(headers, peer, is_own_user=is_own_user)
            if caller is ANONYMOUS:
                raise not_signed(_KEY_NEEDED_OPEN if self._is_open else _KEY_NEEDED)
            return UnverifiedCaller(caller)
        stated = credential_of(request)
        is_ours = stated is not None and is_access_key_id(stated.key_id)
        if not is_ours and self._trusts(headers, peer, is_own_user=is_own_user):
            return UnverifiedCaller(LOCAL_CALLER, stated)
        signature = signature_of(request, self._wall_ms())
        key_id, users = signature.credential.key_id, self._server.local_users
        if users is not None and (secret := users.secret_of(key_id)) is not None:
            return UnverifiedCaller(LOCAL_CALLER, stated, signature, secret)
        secret, caller = await self._server.tokens.find_access_key(key_id)
        return UnverifiedCaller(caller, stated, signature, secret)

    async def admit_caller(
        self,
        caller: Caller,
        needs: tuple[Scope, ...] | None,
        headers: Mapping[str, str],
        peer: str | None,
        *,
        namespace: str | None,
        is_own_user: bool = False,
        is_secure: bool = False,
    ) -> ApiCall:
        """Admit an authenticated caller to a namespace, or to its own if none is named. Raises
        Forbidden."""
        if needs is not None and not caller.may_any(needs):
            raise Forbidden(missing_scope(*needs))
        caller = await self._in_namespace(caller, namespace)
        namespaces = self._server.namespaces
        app = namespaces.apps.get(caller.namespace) or await namespaces.get(caller.namespace)
        return ApiCall(
            server=self._server,
            app=app,
            engine=self._engine(app, caller, peer or ""),
            caller=caller,
            headers=headers,
            peer=peer or "",
            is_own_user=is_own_user,
            is_secure=is_secure,
        )

    def check_origin(self, headers: Mapping[str, str], *, reads: bool) -> None:
        """Raise Forbidden unless Host is a name of this server and Origin is an allowed page. A
        link on any page may lead here, but a form or a frame on it may not."""
        host = headers.get("host")
        if host is None:
            # Probes of load balancers send no Host. Browsers always do, so no web page passes here.
            if self._is_open:
                raise Forbidden("the request has no Host header: send one, e.g. localhost")
        elif not self._is_own_name(host):
            raise Forbidden(
                f"this server is not named {host[:80]!r}: allow that host with --allow-host"
            )
        if headers.get("sec-fetch-dest") in _FRAMES:
            raise Forbidden("no page may show this server in a frame")
        origin = headers.get("origin")
        if origin is None:
            site = headers.get("sec-fetch-site", "none")
            is_link = reads and headers.get("sec-fetch-mode") == "navigate"
            if site in ("none", "same-origin") or is_link:
                return
        elif origin.lower() in self._origins or origin.partition("://")[2] == host:
            return
        raise Forbidden("pages of this origin may not use the server: allow it with --allow-origin")

    async def _of_session(
        self, headers: Mapping[str, str], *, is_secure: bool, reads: bool
    ) -> Caller | None:
        """The caller that signed in; None if its session has ended."""
        text = session_text(headers, is_secure=is_secure, reads=reads)
        if text is None:
            return None
        try:
            return await self._server.tokens.authenticate_session(text)
        except Unauthenticated:
            return None

    async def _authenticate(
        self, headers: Mapping[str, str], peer: str | None, *, is_own_user: bool
    ) -> Caller:
        given = headers.get("authorization")
        if given is not None:
            scheme, _, text = given.partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthenticated("send the token as Authorization: Bearer hf_…")
            users, text = self._server.local_users, text.strip()
            if users is not None and users.accepts(text):
                return LOCAL_CALLER
            return await self._server.tokens.authenticate(text)
        trusted = self._trusts(headers, peer, is_own_user=is_own_user)
        return LOCAL_CALLER if trusted else ANONYMOUS

    def _trusts(self, headers: Mapping[str, str], peer: str | None, *, is_own_user: bool) -> bool:
        """True if a request needs no token."""
        admitted = self._is_open and (is_own_user or self._admits_all)
        return admitted and _is_direct(headers, peer)

    async def _in_namespace(self, caller: Caller, named: str | None) -> Caller:
        """The caller in its token's namespace. A token for all namespaces, or a local caller, may
        name another one."""
        everywhere = caller.namespace == EVERYWHERE
        if caller is ANONYMOUS or (caller.namespace == named and not everywhere):
            return caller
        if named is None:
            return replace(caller, namespace=DEFAULT_NAMESPACE) if everywhere else caller
        if not everywhere and caller is not LOCAL_CALLER:
            if named != caller.namespace:
                raise Forbidden(f"the token is for the namespace {caller.namespace}")
            return caller
        if not bounds.NAMESPACE.match(named) or named not in await served_namespaces(
            self._server, caller
        ):
            raise Forbidden(f"unknown namespace {named[:80]!r}: add it with --namespace")
        return replace(caller, namespace=named)

    def _engine(self, app: Holdfast, caller: Caller, peer: str) -> AuthorizedEngine:
        """The caller's engine, cached because most requests come from a known caller."""
        key = (caller.credential or caller.name, caller.namespace, peer)
        engine = self._engines.get(key)
        if engine is None:
            if len(self._engines) >= _ENGINES_MAX:
                self._engines.clear()
            credential = caller.credential
            require = partial(self._server.tokens.require, credential) if credential else None
            controls = AccessControls(
                require_token=require,
                quotas=self._server.quotas_of(caller.namespace, app),
                audit=self._server.audit_of(caller.namespace, app),
                redaction=self._server.redaction_of(caller.namespace, app),
                peer=peer,
                read_only=self._server.settings.read_only,
            )
            engine = self._engines[key] = AuthorizedEngine(app.engine, caller, controls)
        return engine

    def _is_own_name(self, host: str) -> bool:
        name = host_name(host)
        if not name:
            return False
        if name in self._hosts or name == "localhost" or is_loopback(name):
            return True
        # A numeric address is not resolved, so DNS cannot make it mean this machine.
        return not self._is_open and _address(name) is not None


async def served_namespaces(server: ServerState, caller: Caller) -> list[str]:
    """The namespaces that a caller may name: all that the server knows for a token that is valid
    everywhere, those of `--namespace` for a local caller, and otherwise its own."""
    if caller.token and not caller.everywhere:
        return [caller.namespace]
    named = {DEFAULT_NAMESPACE, *server.settings.namespaces}
    return sorted(named | await server.tokens.namespaces() if caller.everywhere else named)


def _is_direct(headers: Mapping[str, str], peer: str | None) -> bool:
    """True if the request comes from this machine, and not through a proxy on it."""
    is_local = peer is not None and is_loopback(peer)
    return is_local and _PROXY_HEADERS.isdisjoint(headers)


@lru_cache(maxsize=1_000)
def host_name(host: str) -> str:
    """The name in a Host header, without the port, in lower case; empty if it is not valid."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2] or "").lower()


@lru_cache(maxsize=1_000)
def is_loopback(host: str) -> bool:
    """True for localhost and loopback addresses, also IPv4 ones mapped to IPv6."""
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
