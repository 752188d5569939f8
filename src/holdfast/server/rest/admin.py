"""Administration over REST: tokens, quotas, unreadable records and the audit log for admins, stored
settings for operators.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.config import SETTINGS, Setting, find_setting
from holdfast.core import bounds
from holdfast.errors import ConfigError, Forbidden, NotFound
from holdfast.notation.job import Name
from holdfast.ops.audit import ActView, act_view
from holdfast.ops.quotas import QuotaBody, QuotaView, quota_of, quota_view
from holdfast.ops.settings import SettingView, read_settings, save_setting, setting_view
from holdfast.ops.tokens import (
    EVERYWHERE,
    TOKEN_FORM,
    MadeToken,
    NewToken,
    TokenRequest,
    TokenView,
    expiry_ms,
    made_token,
    token_view,
)
from holdfast.ops.unreadable import remove_unreadable
from holdfast.server.access.admission import ApiCall
from holdfast.server.access.caller import Caller
from holdfast.server.access.quotas import QuotaEnforcer
from holdfast.server.http.operation import Operation, Scope, operation

TokenName = Annotated[str, Meta(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9_.@:/ -]+$")]
RecordKindName = Annotated[str, Meta(pattern=r"^[a-z0-9_-]{1,40}$")]
RecordKey = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00]+$")]
QuotaName = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]


class TokenList(msgspec.Struct, frozen=True):
    """Tokens, oldest first."""

    tokens: list[TokenView]


class TokenQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Tokens to list; with `sessions` also those of the dashboard, each with its `parent`."""

    sessions: bool = False


class QuotaList(msgspec.Struct, frozen=True):
    """Quotas, by name."""

    quotas: list[QuotaView]


class ActPage(msgspec.Struct, frozen=True):
    """Acts, newest first: continue while `after` is not null."""

    acts: list[ActView]
    after: str | None


class ActQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A page of acts."""

    limit: Annotated[int, Meta(ge=1, le=bounds.PAGE_MAX)] = 100
    after: Annotated[str, Meta(pattern=r"^[0-9]{15}-[0-9a-f]{8}$")] | None = None


# Declared repeatable so that no Idempotency-Key stores the answer, which holds a secret.
@operation("POST", "/v1/tokens", needs=Scope.ADMIN, status=201, repeatable=True)
async def create_token(call: ApiCall, body: NewToken) -> MadeToken:
    """Create a token, or with `aws` an access key for clients of Amazon SQS. Its text or secret is
    shown only in this answer. It cannot have more rights than the token that creates it.
    """
    caller = _with_token(call)
    namespace = caller.namespace if body.namespace is None else body.namespace
    if namespace != caller.namespace and not caller.everywhere:
        raise Forbidden(f"the token is for the namespace {caller.namespace}")
    lacking = sorted(scope for scope in body.scopes if not caller.may(scope))
    if lacking:
        raise Forbidden(f"a token cannot grant scopes that it lacks: {', '.join(lacking)}")
    wanted = TokenRequest(
        name=body.name,
        scopes=tuple(body.scopes),
        namespace=namespace,
        prefix=body.prefix,
        expires_ms=expiry_ms(body.expires),
        by=caller.name,
        aws=body.aws,
    )
    async with call.noting("token.create", body.name):
        text, token = await call.server.tokens.create(wanted)
    return made_token(token, text)


@operation("GET", "/v1/tokens", needs=Scope.ADMIN)
async def list_tokens(call: ApiCall, query: TokenQuery) -> TokenList:
    """List the tokens of the namespace, oldest first; a token for all namespaces lists all."""
    _with_token(call)
    tokens = await call.server.tokens.all(namespace=_token_namespace(call), sessions=query.sessions)
    return TokenList([token_view(token) for token in tokens])


@operation("DELETE", "/v1/tokens/{named}", needs=Scope.ADMIN)
async def revoke_token(call: ApiCall, named: TokenName) -> TokenView:
    """Revoke a token, by its id or its name: here at once, on other servers within a second."""
    _with_token(call)
    if (token_text := TOKEN_FORM.fullmatch(named)) is not None:
        # The token itself may be given as its name: keep the secret out of the audit log.
        named = token_text[1]
    async with call.noting("token.revoke", named):
        token = await call.server.tokens.revoke(named, namespace=_token_namespace(call))
    return token_view(token)


@operation("GET", "/v1/audit", needs=Scope.ADMIN)
async def list_acts(call: ApiCall, query: ActQuery) -> ActPage:
    """List the audit log: every operator's act in this namespace over HTTP, newest first."""
    audit = call.server.audit_of(call.caller.namespace, call.app)
    found = await audit.page(after=query.after, limit=query.limit)
    after = found[-1][0] if len(found) == query.limit else None
    return ActPage([act_view(act) for _, act in found if act is not None], after)


@operation("GET", "/v1/quotas", needs=Scope.ADMIN)
async def list_quotas(call: ApiCall) -> QuotaList:
    """List the quotas of the namespace and its tenants."""
    quotas = await _quotas(call).all()
    return QuotaList([quota_view(whose, quota) for whose, quota in sorted(quotas.items())])


@operation("PUT", "/v1/quotas/{whose}", needs=Scope.ADMIN)
async def put_quota(call: ApiCall, whose: QuotaName, body: QuotaBody) -> QuotaView:
    """Set a quota for `namespace`, for `tenant:NAME`, or for each tenant without its own
    (`tenant:*`).
    """
    quota = quota_of(body)
    async with call.noting("quota.put", whose):
        await _quotas(call).put(whose, quota)
    return quota_view(whose, quota)


@operation("DELETE", "/v1/quotas/{whose}", needs=Scope.ADMIN, status=204)
async def remove_quota(call: ApiCall, whose: QuotaName) -> None:
    """Remove a quota."""
    async with call.noting("quota.remove", whose):
        if not await _quotas(call).remove(whose):
            raise NotFound(f"unknown quota {whose[:80]!r}: see GET /v1/quotas")


@operation("DELETE", "/v1/records/{kind}/{key}", needs=Scope.ADMIN, status=204)
async def remove_record(call: ApiCall, kind: RecordKindName, key: RecordKey) -> None:
    """Remove a stored record that cannot be read; `GET /v1/doctor` names them."""
    async with call.noting("record.remove", f"{kind} {key}"):
        # The application's engine: some kinds are hidden from the caller's own.
        await remove_unreadable(call.app.engine, kind, key)


class SettingBody(msgspec.Struct, forbid_unknown_fields=True):
    """The new value as text, e.g. 5, 30s, yes."""

    value: Annotated[str, Meta(min_length=1, max_length=2000)]


class SettingList(msgspec.Struct, frozen=True):
    """All settings."""

    settings: list[SettingView]


@operation("GET", "/v1/config", needs=Scope.OBSERVE)
async def list_settings(call: ApiCall) -> SettingList:
    """List settings, with their values and sources. Environment variables are those of the
    server.
    """
    stored = await read_settings(call.engine)
    return SettingList([setting_view(setting, stored) for setting in SETTINGS.values()])


@operation("GET", "/v1/config/{name}", needs=Scope.OBSERVE)
async def show_setting(call: ApiCall, name: Name) -> SettingView:
    """Show a setting and its current value."""
    return setting_view(_setting(name), await read_settings(call.engine))


@operation("PUT", "/v1/config/{name}", needs=Scope.OPERATE)
async def store_setting(call: ApiCall, name: Name, body: SettingBody) -> SettingView:
    """Change a setting for everyone who uses this store."""
    return await _save_setting(call, _setting(name), body.value)


@operation("POST", "/v1/config/{name}/unset", needs=Scope.OPERATE, repeatable=True)
async def unset_setting(call: ApiCall, name: Name) -> SettingView:
    """Remove a stored setting: its default applies again."""
    return await _save_setting(call, _setting(name), None)


OPERATIONS: tuple[Operation, ...] = (
    create_token,
    list_tokens,
    revoke_token,
    list_acts,
    list_quotas,
    put_quota,
    remove_quota,
    remove_record,
    list_settings,
    show_setting,
    store_setting,
    unset_setting,
)


def _with_token(call: ApiCall) -> Caller:
    """The caller, which must have a token: a trusted local address must not be turned into a
    token.
    """
    if not call.caller.token:
        raise Forbidden(
            "creating and listing tokens over HTTP needs a token: run `holdfast token create`"
            " on the machine of the store"
        )
    return call.caller


def _token_namespace(call: ApiCall) -> str:
    return EVERYWHERE if call.caller.everywhere else call.caller.namespace


def _quotas(call: ApiCall) -> QuotaEnforcer:
    return call.server.quotas_of(call.caller.namespace, call.app)


async def _save_setting(call: ApiCall, setting: Setting, value: str | None) -> SettingView:
    await save_setting(call.engine, setting.name, value)
    return setting_view(setting, await read_settings(call.engine))


def _setting(name: str) -> Setting:
    try:
        return find_setting(name)
    except ConfigError as error:
        raise NotFound(str(error)) from None
