"""What an admin does: tokens, quotas, and a look at what others did."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core import limits
from holdfast.errors import Forbidden, NotFound
from holdfast.server.admin_views import (
    ActView,
    MadeToken,
    NewToken,
    QuotaBody,
    QuotaView,
    TokenView,
    act_view,
    expiry_ms,
    made_token,
    quota_of,
    quota_view,
    token_view,
)
from holdfast.server.audit import Audit
from holdfast.server.callers import Caller
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.quotas import Quotas
from holdfast.server.tokens import EVERYWHERE, FORM, Wanted

Named = Annotated[str, Meta(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9_.@:/ -]+$")]
Whose = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]


class TokenList(msgspec.Struct, frozen=True):
    tokens: list[TokenView]


class QuotaList(msgspec.Struct, frozen=True):
    quotas: list[QuotaView]


class ActPage(msgspec.Struct, frozen=True):
    """Newest first: go on while `after` is not null."""

    acts: list[ActView]
    after: str | None


class ActQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_MAX)] = 100
    after: Annotated[str, Meta(pattern=r"^[0-9]{15}-[0-9a-f]{8}$")] | None = None


# Said to be repeatable, so that no Idempotency-Key keeps the answer: there is a secret in it.
@operation("POST", "/v1/tokens", needs=Scope.ADMIN, status=201, repeatable=True)
async def create_token(call: Call, body: NewToken) -> MadeToken:
    """Make a token. Its text is in the answer and nowhere else. It can do no more than the token
    it was made with."""
    caller = _with_token(call)
    namespace = caller.namespace if body.namespace is None else body.namespace
    if namespace != caller.namespace and not caller.everywhere:
        raise Forbidden(f"the token is for the namespace {caller.namespace}")
    lacking = sorted(scope for scope in body.scopes if not caller.may(scope))
    if lacking:
        raise Forbidden(f"a token gives no more than it has: {', '.join(lacking)}")
    wanted = Wanted(
        name=body.name,
        scopes=tuple(body.scopes),
        namespace=namespace,
        prefix=body.prefix,
        expires_ms=expiry_ms(body.expires),
        by=caller.name,
    )
    async with call.noting("token.create", body.name):
        text, token = await call.server.tokens.create(wanted)
    return made_token(token, text)


@operation("GET", "/v1/tokens", needs=Scope.ADMIN)
async def list_tokens(call: Call) -> TokenList:
    """The tokens of the namespace, oldest first; of all, for a token that is for all."""
    _with_token(call)
    tokens = await call.server.tokens.all(namespace=_reach(call))
    return TokenList([token_view(token) for token in tokens])


@operation("DELETE", "/v1/tokens/{named}", needs=Scope.ADMIN)
async def revoke_token(call: Call, named: Named) -> TokenView:
    """Revoke a token, by its id or its name: here at once, on other servers within a second."""
    _with_token(call)
    if (whole := FORM.fullmatch(named)) is not None:
        # Who names it by all of it shall not find its secret in the audit.
        named = whole[1]
    async with call.noting("token.revoke", named):
        token = await call.server.tokens.revoke(named, namespace=_reach(call))
    return token_view(token)


@operation("GET", "/v1/audit", needs=Scope.ADMIN)
async def list_acts(call: Call, query: ActQuery) -> ActPage:
    """Who did what in this namespace: every operator's act over HTTP, the newest first."""
    found = await _audit(call).page(after=query.after, limit=query.limit)
    after = found[-1][0] if len(found) == query.limit else None
    return ActPage([act_view(act) for _, act in found if act is not None], after)


@operation("GET", "/v1/quotas", needs=Scope.ADMIN)
async def list_quotas(call: Call) -> QuotaList:
    """The quotas of the namespace and of its tenants."""
    quotas = await _quotas(call).all()
    return QuotaList([quota_view(whose, quota) for whose, quota in sorted(quotas.items())])


@operation("PUT", "/v1/quotas/{whose}", needs=Scope.ADMIN)
async def put_quota(call: Call, whose: Whose, body: QuotaBody) -> QuotaView:
    """Set the quota of `namespace`, of `tenant:NAME`, or of each tenant that has none of its own,
    `tenant:*`."""
    quota = quota_of(body)
    async with call.noting("quota.put", whose):
        await _quotas(call).put(whose, quota)
    return quota_view(whose, quota)


@operation("DELETE", "/v1/quotas/{whose}", needs=Scope.ADMIN, status=204)
async def remove_quota(call: Call, whose: Whose) -> None:
    """Take a quota away."""
    async with call.noting("quota.remove", whose):
        if not await _quotas(call).remove(whose):
            raise NotFound(f"there is no quota of {whose[:80]!r}: see /v1/quotas")


def _with_token(call: Call) -> Caller:
    """Who is trusted for where they are must not make themselves trusted elsewhere."""
    if not call.caller.token:
        raise Forbidden(
            "tokens are made and seen over HTTP only with a token: use holdfast token create "
            "where the store is"
        )
    return call.caller


def _reach(call: Call) -> str:
    return EVERYWHERE if call.caller.everywhere else call.caller.namespace


def _audit(call: Call) -> Audit:
    return call.server.audit_of(call.caller.namespace, call.app)


def _quotas(call: Call) -> Quotas:
    return call.server.quotas_of(call.caller.namespace, call.app)


OPERATIONS: tuple[Operation, ...] = (
    create_token,
    list_tokens,
    revoke_token,
    list_acts,
    list_quotas,
    put_quota,
    remove_quota,
)
