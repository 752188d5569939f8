"""`holdfast quota list`, `set` and `remove`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from holdfast.app import Holdfast
from holdfast.cli.admin import act, audit_of, in_path, server_of
from holdfast.cli.exits import NotFound
from holdfast.cli.output import COMMON, Common, print_json, print_table, say
from holdfast.cli.pages import program
from holdfast.cli.running import running
from holdfast.server.admin_views import QuotaBody, quota_of, quota_view
from holdfast.server.quotas import Quotas, show

Whose = Annotated[
    str, Parameter(help="namespace, tenant:NAME, or tenant:* for each that has none of its own.")
]


async def list_all(*, common: Common = COMMON) -> None:
    """List the quotas of a namespace and its tenants."""
    async with running(common) as app:
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
        say(f"there is no quota: set one with {program()} quota set")
        return
    names = ("whose", "depth", "rate", "bytes")
    rows = [["-" if each[name] is None else each[name] for name in names] for each in quotas]
    print_table(names, rows)


async def set_(
    whose: Whose,
    /,
    *,
    depth: Annotated[int | None, Parameter(help="Jobs that have not ended, at most.")] = None,
    rate: Annotated[str | None, Parameter(help="Jobs that come in: 100/s, 5000/h.")] = None,
    bytes: Annotated[str | None, Parameter(help="What they carry: 10MB/m, 1GB/d.")] = None,
    common: Common = COMMON,
) -> None:
    """Bound what a tenant, or a whole namespace, may put in over HTTP."""
    quota = quota_of(QuotaBody(depth=depth, rate=rate, bytes=bytes))
    async with running(common, create=True) as app:
        ask = server_of(app)
        if ask is not None:
            body = {"depth": depth, "rate": rate, "bytes": bytes}
            view = await ask("PUT", f"/v1/quotas/{in_path(whose)}", body)
        else:
            async with audit_of(app).doing(act("quota.put", whose)):
                await _quotas(app).put(whose, quota)
            view = msgspec.to_builtins(quota_view(whose, quota))
    if common.json:
        print_json(view)
    else:
        bounds = [f"{name} {view[name]}" for name in ("depth", "rate", "bytes") if view[name]]
        print(f"the quota of {show(whose)}: {', '.join(bounds)}")


async def remove(whose: Whose, /, *, common: Common = COMMON) -> None:
    """Take a quota away."""
    async with running(common) as app:
        ask = server_of(app)
        if ask is not None:
            await ask("DELETE", f"/v1/quotas/{in_path(whose)}")
        else:
            async with audit_of(app).doing(act("quota.remove", whose)):
                if not await _quotas(app).remove(whose):
                    raise NotFound(f"there is no quota of {whose[:80]!r}: see {program()} quota")
    if common.json:
        print_json({"whose": whose})
    else:
        print(f"removed the quota of {show(whose)}")


def _quotas(app: Holdfast) -> Quotas:
    return Quotas(lambda: app.engine)
