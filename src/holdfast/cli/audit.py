"""`holdfast audit`: who did what."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from holdfast.cli.admin import audit_of, server_of
from holdfast.cli.output import COMMON, Common, print_json, print_table, say
from holdfast.cli.running import running
from holdfast.core import limits
from holdfast.errors import UsageError
from holdfast.server.admin_views import ActView, act_view


async def audit(
    *,
    limit: Annotated[int, Parameter(help="How many, the newest.")] = 50,
    common: Common = COMMON,
) -> None:
    """Show what operators did over HTTP, the newest first."""
    if not 1 <= limit <= limits.PAGE_MAX:
        raise UsageError(f"--limit {limit} is not 1 to {limits.PAGE_MAX}")
    async with running(common) as app:
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
        say("nobody did anything over HTTP yet, or it is forgotten")
        return
    rows = [
        (
            act.at,
            act.who,
            act.token or "",
            act.peer or "",
            act.what,
            act.on,
            act.outcome or "not known",
            "" if act.changed is None else act.changed,
        )
        for act in (msgspec.convert(each, ActView) for each in acts)
    ]
    print_table(("at", "who", "token", "from", "what", "on", "outcome", "changed"), rows)
