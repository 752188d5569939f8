"""`holdfast token create`, `list` and `revoke`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from holdfast.cli.admin import act, at_home, audit_of, in_path, server_of
from holdfast.cli.output import COMMON, Common, print_json, print_table, say
from holdfast.cli.pages import program
from holdfast.cli.person import person
from holdfast.errors import ConfigError
from holdfast.server.admin_views import TokenView, expiry_ms, made_token, token_view
from holdfast.server.readiness import is_whole
from holdfast.server.tokens import Tokens, Wanted
from holdfast.upkeep import wall_ms

Name = Annotated[str, Parameter(help="Whose it is, or what it is for.")]


async def create(
    name: Name,
    /,
    *,
    scopes: Annotated[
        list[str],
        Parameter(
            name=("--scopes", "--scope"),
            help="produce, consume, operate, admin, run-commands; with commas.",
            negative=(),
        ),
    ],
    namespace: Annotated[
        str | None, Parameter(help="The namespace it is for; * is all of them.")
    ] = None,
    prefix: Annotated[str, Parameter(help="Only for queues that begin with this.")] = "",
    expires: Annotated[
        str | None, Parameter(help="How long it lasts: 90d, 12h or never; 90d.")
    ] = None,
    common: Common = COMMON,
) -> None:
    """Make a token for the server, and print it: it is shown this once."""
    wanted = tuple(filter(None, (each.strip() for each in ",".join(scopes).split(","))))
    async with at_home(common, create=True) as app:
        ask = server_of(app)
        if ask is not None:
            body = {"name": name, "scopes": wanted, "prefix": prefix}
            body |= {"namespace": namespace} if namespace is not None else {}
            body |= {"expires": expires} if expires is not None else {}
            made = await ask("POST", "/v1/tokens", body)
        else:
            request = Wanted(
                name=name,
                scopes=wanted,
                namespace="default" if namespace is None else namespace,
                prefix=prefix,
                expires_ms=expiry_ms(expires),
                by=person(),
            )
            async with audit_of(app).doing(act("token.create", name)):
                text, token = await Tokens(lambda: app.engine, wall_ms).create(request)
            made = msgspec.to_builtins(made_token(token, text))
    if common.json:
        print_json(made)
        return
    print(made["token"])
    until = made["expires_at"] or "it is revoked"
    say(f"token {made['id']} lasts until {until}; it is not shown again: keep it safe")


async def list_all(*, common: Common = COMMON) -> None:
    """List the tokens: what they may do, and until when."""
    async with at_home(common) as app:
        ask = server_of(app)
        if ask is not None:
            tokens: list[dict[str, Any]] = (await ask("GET", "/v1/tokens"))["tokens"]
        else:
            found = await Tokens(lambda: app.engine, wall_ms).all()
            tokens = [msgspec.to_builtins(token_view(token)) for token in found]
    if common.json:
        print_json(tokens)
        return
    if not tokens:
        say(f"there is no token: make one with {program()} token create")
        return
    rows = [
        (
            token.id,
            token.name,
            token.namespace,
            ", ".join(token.scopes),
            token.prefix,
            token.created_at,
            token.expires_at or "never",
        )
        for token in (msgspec.convert(each, TokenView) for each in tokens)
    ]
    print_table(("token", "name", "namespace", "scopes", "prefix", "made", "expires"), rows)


async def revoke(
    named: Annotated[str, Parameter(help="Its id, or its name.")],
    /,
    *,
    common: Common = COMMON,
) -> None:
    """Revoke a token: within a second nobody comes in with it."""
    if named.startswith("hf_"):
        # Whoever has only the token itself names it by the part that is no secret.
        named = named.split("_")[1]
    async with at_home(common) as app:
        ask = server_of(app)
        if ask is not None:
            gone = await ask("DELETE", f"/v1/tokens/{in_path(named)}")
        else:
            async with audit_of(app).doing(act("token.revoke", named)):
                tokens = Tokens(lambda: app.engine, wall_ms, lambda: is_whole(app))
                token = await tokens.revoke(named)
            gone = msgspec.to_builtins(token_view(token))
    if common.json:
        print_json(gone)
    elif not isinstance(gone, dict):
        raise ConfigError("the server did not say which token it revoked")
    else:
        print(f"revoked token {gone['id']}, {gone['name']}")
