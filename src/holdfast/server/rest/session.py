"""Sign-in of the dashboard: a token is exchanged for a short-lived session in a cookie. Also what
the caller of a request may do, for every caller."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast import __version__
from holdfast.engines.base import Traits
from holdfast.notation.durations import show_at
from holdfast.ops.audit import AuditEntry
from holdfast.ops.tokens import EVERYWHERE
from holdfast.ops.views import at_of
from holdfast.process import wall_ms
from holdfast.server.access.admission import ApiCall, served_namespaces
from holdfast.server.access.caller import Caller
from holdfast.server.access.sessions import check_sign_in, set_cookie
from holdfast.server.http.operation import Operation, Scope, WithHeaders, operation
from holdfast.server.state import DEFAULT_NAMESPACE


class SignIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The token to sign in with."""

    token: Annotated[str, Meta(min_length=1, max_length=200)]

    def __repr__(self) -> str:
        return "SignIn()"


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The engine behind the server, and its abilities."""

    name: str
    traits: dict[str, bool | int | str]


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """The caller. `scopes` include the implied ones; `namespaces` are those that the caller may
    name in the header `Holdfast-Namespace`; `signed_in` is true for a session; on a `read_only`
    server nobody can change anything. `time` is the server's clock."""

    name: str
    namespace: str
    namespaces: list[str]
    scopes: list[str]
    prefix: str
    expires_at: str | None
    signed_in: bool
    read_only: bool
    version: str
    engine: EngineInfo
    time: str


@operation("GET", "/v1/session", needs=Scope.KNOWN)
async def show_session(call: ApiCall) -> SessionView:
    """Show the caller: its name, scopes and namespaces, and when its token or session expires."""
    return await _view(call, call.caller)


# Declared repeatable so that no Idempotency-Key stores the answer, which holds a secret.
@operation("POST", "/v1/session", needs=None, repeatable=True)
async def sign_in(call: ApiCall, body: SignIn) -> WithHeaders[SessionView]:
    """Sign in to the dashboard: exchange a token for a session of at most 12 hours, in a cookie.
    The session ends with its token. Only the server's own page can sign in, over HTTPS, or on
    loopback as the server's own user.
    """
    check_sign_in(
        call.headers,
        is_secure=call.is_secure,
        is_local=call.is_direct,
        is_own_user=call.is_own_user,
    )
    tokens = call.server.tokens
    parent, caller = await tokens.verify(body.token.strip())
    if caller.namespace == EVERYWHERE:
        caller = msgspec.structs.replace(caller, namespace=DEFAULT_NAMESPACE)
    app = await call.server.namespaces.get(caller.namespace)
    act = AuditEntry(
        at=0, who=parent.name, token=parent.id, peer=call.peer, what="session.create", on=parent.id
    )
    async with call.server.audit_of(caller.namespace, app).doing(act):
        text, session = await tokens.create_session(parent)
    caller = msgspec.structs.replace(caller, session=session.id)
    if call.caller.session:
        await tokens.end_session(call.caller.session)
    assert session.expires_at is not None
    age_s = max(0, session.expires_at - session.created_at) // 1000
    cookie = set_cookie(text, is_secure=call.is_secure, age_s=age_s)
    return WithHeaders(await _view(call, caller), (cookie,))


@operation("DELETE", "/v1/session", needs=None, status=204)
async def sign_out(call: ApiCall) -> WithHeaders[None]:
    """Sign out of the dashboard: end the session and remove its cookie. Its streams end."""
    if call.caller.session:
        await call.server.tokens.end_session(call.caller.session)
    return WithHeaders(None, (set_cookie("", is_secure=call.is_secure, age_s=0),))


async def _view(call: ApiCall, caller: Caller) -> SessionView:
    server = call.server
    traits = call.app.engine.traits
    expires_at = await server.tokens.expires_at(caller.credential) if caller.credential else None
    return SessionView(
        name=caller.name,
        namespace=caller.namespace,
        namespaces=await served_namespaces(server, caller),
        scopes=sorted(caller.scopes),
        prefix=caller.prefix,
        expires_at=at_of(expires_at),
        signed_in=bool(caller.session),
        read_only=server.settings.read_only,
        version=__version__,
        engine=EngineInfo(name=traits.name, traits=_abilities(traits)),
        time=show_at(wall_ms()),
    )


def _abilities(traits: Traits) -> dict[str, bool | int | str]:
    found: dict[str, bool | int | str] = msgspec.to_builtins(traits)
    del found["name"]
    return found


OPERATIONS: tuple[Operation, ...] = (
    show_session,
    # People can sign in to a read-only server.
    replace(sign_in, only_reads=True),
    replace(sign_out, only_reads=True),
)
