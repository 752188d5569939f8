"""`holdfast token`, `quota`, `config`, `record` and `audit`: access to the server, stored settings,
and records that cannot be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec
from cyclopts import Parameter

from holdfast.app.application import Holdfast
from holdfast.cli.flags import option, switch
from holdfast.cli.help_pages import program
from holdfast.cli.output import (
    COMMON,
    Common,
    new_private_file,
    print_either,
    print_json,
    print_table,
    say,
)
from holdfast.cli.session import (
    open_app,
    open_token_store,
    path_segment,
    person,
    server_of,
)
from holdfast.config import SETTINGS, Setting
from holdfast.config import find_setting as setting_of
from holdfast.core import bounds
from holdfast.core.text import printable
from holdfast.errors import ConfigError, NotFound, UsageError
from holdfast.ops.audit import ActView, Audit, AuditEntry, act_view
from holdfast.ops.quotas import QuotaBody, Quotas, quota_of, quota_view, show_owner
from holdfast.ops.settings import read_settings, save_setting, setting_view
from holdfast.ops.tokens import (
    SCOPES,
    TokenRequest,
    Tokens,
    TokenView,
    expiry_ms,
    made_token,
    token_view,
)
from holdfast.ops.unreadable import remove_unreadable
from holdfast.ops.views import plain
from holdfast.process import wall_ms
from holdfast.server.state import is_fully_readable

QuotaOwner = Annotated[
    str,
    Parameter(help="namespace, tenant:NAME, or tenant:* for each tenant without its own quota."),
]

SettingName = Annotated[str, Parameter(help="Name of the setting, e.g. max-retries.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class TokenFlags:
    """Rights and form of a new token."""

    scopes: Annotated[
        list[str] | None,
        option(
            "SCOPE...",
            "Grant these scopes: produce, consume, observe, operate, admin, run-commands. "
            "Repeatable, or separated by commas. [required]",
            "--scopes",
            "--scope",
        ),
    ] = None
    namespace: Annotated[
        str | None,
        option("NAME", "Restrict the token to this namespace; * allows all. [default: default]"),
    ] = None
    prefix: Annotated[
        str, option("TEXT", "Restrict the token to queues whose names begin with this.")
    ] = ""
    expires: Annotated[
        str | None,
        option("DURATION", "Refuse the token after this long, e.g. 12h; or never. [default: 90d]"),
    ] = None
    aws: Annotated[
        bool, switch("Create an access key, with which AWS clients sign their requests.")
    ] = False

    def body(self, name: str) -> dict[str, Any]:
        """The body of a request for the token. Raises UsageError."""
        given = ",".join(self.scopes or ()).split(",")
        scopes = tuple(filter(None, (each.strip() for each in given)))
        if not scopes:
            raise UsageError(f"a token needs a scope: give --scope with any of {', '.join(SCOPES)}")
        body: dict[str, Any] = {"name": name, "scopes": scopes, "prefix": self.prefix}
        more = {"namespace": self.namespace, "expires": self.expires, "aws": self.aws or None}
        return body | {key: value for key, value in more.items() if value is not None}


_TOKEN_FLAGS = TokenFlags()


async def create_token(
    name: Annotated[str, Parameter(help="Name for the token, e.g. of the program that uses it.")],
    /,
    *,
    flags: TokenFlags = _TOKEN_FLAGS,
    out: Annotated[
        str | None,
        option("FILE", "Write the token to this new file, readable only by you."),
    ] = None,
    common: Common = COMMON,
) -> None:
    """Create a token and print it, or write it to a file. It cannot be shown again."""
    body = flags.body(name)
    async with contextlib.AsyncExitStack() as stack:
        # First the file: a token that cannot be written down must not exist.
        file = stack.enter_context(_token_file(out)) if out is not None else None
        app = await stack.enter_async_context(open_token_store(common, create=True))
        ask = server_of(app)
        made = await (
            _create_in_store(app, body) if ask is None else ask("POST", "/v1/tokens", body)
        )
        text = _access_key_lines(made) if flags.aws else made["token"]
        if file is not None:
            print(text, file=file, flush=True)
            made.pop("secret_access_key" if flags.aws else "token")
    what = f"{'access key' if flags.aws else 'token'} {made['id']}"
    until = made["expires_at"] or "it is revoked"
    if common.json:
        print_json(made)
    elif out is not None:
        say(f"{what} is in {out} and valid until {until}; it cannot be shown again")
    else:
        print(text)
        say(f"{what} is valid until {until}; it cannot be shown again, so store it safely")


def _access_key_lines(made: dict[str, Any]) -> str:
    """A new access key as the environment variables that AWS clients read."""
    key_id, secret = made["access_key_id"], made["secret_access_key"]
    return f"AWS_ACCESS_KEY_ID={key_id}\nAWS_SECRET_ACCESS_KEY={secret}"


async def _create_in_store(app: Holdfast, wanted: dict[str, Any]) -> dict[str, Any]:
    """Create a token with the fields of a request, and answer as a server would."""
    fields = dict(wanted)
    request = TokenRequest(expires_ms=expiry_ms(fields.pop("expires", None)), by=person(), **fields)
    async with audit_of(app).doing(audit_act("token.create", request.name)):
        text, token = await Tokens(lambda: app.engine, wall_ms).create(request)
    made: dict[str, Any] = msgspec.to_builtins(made_token(token, text))
    return made


@contextlib.contextmanager
def _token_file(path: str) -> Iterator[TextIO]:
    """A new file for a token; removed again if no token was created."""
    with new_private_file(path) as file:
        try:
            yield file
        except BaseException:
            Path(path).unlink(missing_ok=True)
            raise


async def list_tokens(
    *,
    sessions: Annotated[bool, switch("Also list the sessions of the dashboard.")] = False,
    common: Common = COMMON,
) -> None:
    """List tokens with their scopes and expiry."""
    async with open_token_store(common) as app:
        ask = server_of(app)
        if ask is not None:
            path = f"/v1/tokens{'?sessions=true' if sessions else ''}"
            tokens: list[dict[str, Any]] = (await ask("GET", path))["tokens"]
        else:
            found = await Tokens(lambda: app.engine, wall_ms).all(sessions=sessions)
            tokens = [msgspec.to_builtins(token_view(token)) for token in found]
    if common.json:
        print_json(tokens)
        return
    if not tokens:
        say(f'there are no tokens: create one with "{program()} token create"')
        return
    rows = [
        (
            token.id,
            token.name,
            token.namespace,
            f"session of {token.parent}" if token.parent else ", ".join(token.scopes),
            token.prefix,
            token.created_at,
            token.expires_at or "never",
        )
        for token in (msgspec.convert(each, TokenView) for each in tokens)
    ]
    print_table(
        ("token", "name", "namespace", "scopes", "prefix", "created", "expires"),
        rows,
        less=("created", "namespace"),
    )


async def revoke_token(
    token: Annotated[str, Parameter(help="Id or name of the token.")],
    /,
    *,
    common: Common = COMMON,
) -> None:
    """Revoke a token. Servers refuse it within a second."""
    if token.startswith("hf_"):
        # The token itself was given: its second part is its id, which is not secret.
        token = token.split("_")[1]
    async with open_token_store(common) as app:
        ask = server_of(app)
        if ask is not None:
            revoked = await ask("DELETE", f"/v1/tokens/{path_segment(token)}")
        else:
            async with audit_of(app).doing(audit_act("token.revoke", token)):
                tokens = Tokens(lambda: app.engine, wall_ms, lambda: is_fully_readable(app))
                revoked = msgspec.to_builtins(token_view(await tokens.revoke(token)))
    if common.json:
        print_json(revoked)
    elif not isinstance(revoked, dict):
        raise ConfigError("the server's answer does not name the revoked token")
    else:
        print(f"revoked token {revoked['id']}, {revoked['name']}")


async def list_quotas(*, common: Common = COMMON) -> None:
    """List the quotas of the namespace and its tenants."""
    async with open_app(common) as app:
        ask = server_of(app)
        if ask is not None:
            quotas: list[dict[str, Any]] = (await ask("GET", "/v1/quotas"))["quotas"]
        else:
            found = sorted((await _quotas(app).all()).items())
            quotas = [msgspec.to_builtins(quota_view(whose, quota)) for whose, quota in found]
    if common.json:
        print_json(quotas)
        return
    if not quotas:
        say(f'there are no quotas: set one with "{program()} quota set"')
        return
    names = ("whose", "depth", "rate", "bytes")
    rows = [["-" if each[name] is None else each[name] for name in names] for each in quotas]
    print_table(names, rows)


async def set_quota(
    owner: QuotaOwner,
    /,
    *,
    depth: Annotated[int | None, option("N", "Refuse jobs while this many have not ended.")] = None,
    rate: Annotated[
        str | None, option("RATE", "Accept at most this many jobs, e.g. 100/s or 5000/h.")
    ] = None,
    bytes: Annotated[
        str | None, option("RATE", "Accept at most this much payload, e.g. 10MB/m or 1GB/d.")
    ] = None,
    common: Common = COMMON,
) -> None:
    """Limit how much a tenant or the namespace may enqueue over HTTP."""
    quota = quota_of(QuotaBody(depth=depth, rate=rate, bytes=bytes))
    async with open_app(common, create=True) as app:
        ask = server_of(app)
        if ask is not None:
            body = {"depth": depth, "rate": rate, "bytes": bytes}
            view = await ask("PUT", f"/v1/quotas/{path_segment(owner)}", body)
        else:
            async with audit_of(app).doing(audit_act("quota.put", owner)):
                await _quotas(app).put(owner, quota)
            view = msgspec.to_builtins(quota_view(owner, quota))
    limits = [f"{name} {view[name]}" for name in ("depth", "rate", "bytes") if view[name]]
    print_either(view, f"quota of {show_owner(owner)}: {', '.join(limits)}", common)


async def remove_quota(owner: QuotaOwner, /, *, common: Common = COMMON) -> None:
    """Remove a quota."""
    async with open_app(common) as app:
        ask = server_of(app)
        if ask is not None:
            await ask("DELETE", f"/v1/quotas/{path_segment(owner)}")
        else:
            async with audit_of(app).doing(audit_act("quota.remove", owner)):
                if not await _quotas(app).remove(owner):
                    raise NotFound(f'"{owner[:80]}" has no quota; see "{program()} quota list"')
    print_either({"whose": owner}, f"removed the quota of {show_owner(owner)}", common)


def _quotas(app: Holdfast) -> Quotas:
    return Quotas(lambda: app.engine)


async def get_setting(name: SettingName, /, *, common: Common = COMMON) -> None:
    """Print the value of a setting."""
    setting = _known_setting(name)
    async with open_app(common) as app:
        held = await read_settings(app.engine)
    if common.json:
        print_json(plain(setting_view(setting, held)))
    else:
        print(printable(held.shown(setting.name).text, one_line=True))


async def set_setting(
    name: SettingName,
    value: Annotated[str, Parameter(help="New value, e.g. 5 or 30s.")],
    /,
    *,
    common: Common = COMMON,
) -> None:
    """Store a setting for every command that uses this store."""
    await _change_setting(_known_setting(name), value, common)


async def unset_setting(name: SettingName, /, *, common: Common = COMMON) -> None:
    """Remove a stored setting."""
    await _change_setting(_known_setting(name), None, common)


async def list_settings(*, common: Common = COMMON) -> None:
    """List every setting with its value and where the value comes from."""
    async with open_app(common) as app:
        held = await read_settings(app.engine)
    if common.json:
        print_json([plain(setting_view(setting, held)) for setting in SETTINGS.values()])
        return
    rows = [
        (name, held.shown(name).text or "-", held.shown(name).source, setting.does)
        for name, setting in SETTINGS.items()
    ]
    columns = ("setting", "value", "from", "what it does")
    print_table(columns, rows, prose=("what it does",))


async def _change_setting(setting: Setting, value: str | None, common: Common) -> None:
    async with open_app(common, create=value is not None) as app:
        await save_setting(app.engine, setting.name, value)
        held = await read_settings(app.engine)
    print_either(plain(setting_view(setting, held)), _setting_changed(setting, value), common)
    if held.shown(setting.name).source == "environment":
        now = held.shown(setting.name).text
        say(f"in this environment {setting.variable} overrides the stored value with {now}")


def _setting_changed(setting: Setting, value: str | None) -> str:
    if value is not None:
        users = {
            "enqueue": "for jobs enqueued ",
            "worker start, worker run, up": "for workers started ",
        }
        user = users.get(setting.feeds, "")
        return f"{setting.name} is {value.strip()} {user}from now on"
    default = f"{setting.default} by default" if setting.default else "not set"
    return f"{setting.name} is {default}"


def _known_setting(name: str) -> Setting:
    try:
        return setting_of(name)
    except ConfigError as error:
        raise NotFound(str(error)) from None


async def remove_record(
    kind: Annotated[str, Parameter(help="Kind of the record, e.g. schedule.")],
    key: Annotated[str, Parameter(help="Key of the record.")],
    /,
    *,
    common: Common = COMMON,
) -> None:
    """Remove a stored record that cannot be read; doctor lists such records."""
    async with open_app(common) as app:
        ask = server_of(app)
        if ask is not None:
            await ask("DELETE", f"/v1/records/{path_segment(kind)}/{path_segment(key)}")
        else:
            async with audit_of(app).doing(audit_act("record.remove", f"{kind} {key}")):
                await remove_unreadable(app.engine, kind, key)
    print_either({"kind": kind, "key": key}, f"removed the {kind} record {key}", common)


async def audit(
    *,
    limit: Annotated[int, option("N", "Show at most this many entries.")] = 50,
    common: Common = COMMON,
) -> None:
    """Show what operators changed over HTTP, newest first."""
    if not 1 <= limit <= bounds.PAGE_MAX:
        raise UsageError(f"--limit {limit} is out of range: expected 1 to {bounds.PAGE_MAX}")
    async with open_app(common) as app:
        ask = server_of(app)
        if ask is not None:
            acts: list[dict[str, Any]] = (await ask("GET", f"/v1/audit?limit={limit}"))["acts"]
        else:
            found = await audit_of(app).page(limit=limit)
            acts = [msgspec.to_builtins(act_view(act)) for _, act in found if act is not None]
    if common.json:
        print_json(acts)
        return
    if not acts:
        say("the audit log is empty")
        return
    rows = [
        (
            act.at,
            act.who,
            act.token or "",
            act.peer or "",
            act.what,
            act.on,
            act.outcome or "unknown",
            "" if act.changed is None else act.changed,
        )
        for act in (msgspec.convert(each, ActView) for each in acts)
    ]
    columns = ("at", "who", "token", "from", "what", "on", "outcome", "changed")
    print_table(columns, rows, less=("token", "from", "changed"))


def audit_of(app: Holdfast) -> Audit:
    """The audit log of the store."""
    return Audit(lambda: app.engine, wall_ms)


def audit_act(what: str, on: str) -> AuditEntry:
    """An entry of the audit log, by the person at the command line."""
    return AuditEntry(at=0, who=person(), what=what, on=on)
