"""`holdfast serve`: an application over HTTP, in the foreground."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from holdfast import __version__
from holdfast.cli.alertflags import AlertFlags
from holdfast.cli.guards import archive_at
from holdfast.cli.output import COMMON, Common, print_json, say
from holdfast.cli.running import running
from holdfast.core.text import printable
from holdfast.durations import to_ms
from holdfast.errors import ConfigError, UsageError
from holdfast.server.settings import PORT, ServerSettings
from holdfast.worker.launcher import Program


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class ServeFlags:
    """How a server is to be."""

    host: Annotated[
        str, Parameter(help="The address to listen on; others than loopback need tokens.")
    ] = "127.0.0.1"
    port: Annotated[int, Parameter(help="The port; 0 takes one that is free.")] = PORT
    auth: Annotated[
        bool | None,
        Parameter(help="Answer to tokens alone; off where only this machine can ask."),
    ] = None
    allow_host: Annotated[
        list[str] | None,
        Parameter(help="One more name that requests may call it by.", negative=()),
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        Parameter(help="A web page's origin that may use it: https://tools.test.", negative=()),
    ] = None
    proxy: Annotated[
        list[str] | None,
        Parameter(help="A proxy's address whose X-Forwarded-For is believed.", negative=()),
    ] = None
    namespace: Annotated[
        list[str] | None, Parameter(help="Serve this namespace too.", negative=())
    ] = None
    tls_cert: Annotated[Path | None, Parameter(help="Its certificate, for HTTPS.")] = None
    tls_key: Annotated[Path | None, Parameter(help="The key of that certificate.")] = None
    tls_client_ca: Annotated[
        Path | None, Parameter(help="Whose certificates clients must show.")
    ] = None
    grace: Annotated[str, Parameter(help="How long a stop waits for what was asked.")] = "10s"
    body_max: Annotated[int, Parameter(help="Bytes of a request, at most.")] = 32 * 1024 * 1024
    requests_max: Annotated[int, Parameter(help="Requests under way at once.")] = 512
    connections_max: Annotated[int, Parameter(help="Connections at once.")] = 16_000
    access_log: Annotated[bool, Parameter(help="A line of JSON for each request.")] = False
    upkeep: Annotated[bool, Parameter(help="Also bring lapsed leases back, and so on.")] = True
    archive: Annotated[
        Path | None, Parameter(help="Keep finished jobs in this file before they are deleted.")
    ] = None

    def settings(self) -> ServerSettings:
        for name, low in (("body_max", 1024), ("requests_max", 1), ("connections_max", 1)):
            if getattr(self, name) < low:
                raise UsageError(f"--{name.replace('_', '-')} must be {low} or more")
        return ServerSettings(
            host=self.host,
            port=self.port,
            auth=self.auth,
            namespaces=tuple(self.namespace or ()),
            hosts=tuple(self.allow_host or ()),
            origins=tuple(self.allow_origin or ()),
            proxies=tuple(self.proxy or ()),
            tls_cert=_absolute(self.tls_cert),
            tls_key=_absolute(self.tls_key),
            tls_client_ca=_absolute(self.tls_client_ca),
            grace_ms=to_ms("grace", self.grace, UsageError),
            body_max=self.body_max,
            requests_max=self.requests_max,
            connections_max=self.connections_max,
            access_log=self.access_log,
            upkeep=self.upkeep,
            archive=archive_at(self.archive),
        )


_FLAGS = ServeFlags()
_ALERTS = AlertFlags()


def serve(
    *, flags: ServeFlags = _FLAGS, alerts: AlertFlags = _ALERTS, common: Common = COMMON
) -> None:
    """Serve the queues over HTTP: for any language, and for workers on other machines."""
    require_server()
    from holdfast.server.main import run
    from holdfast.server.tls import tls_context

    settings = msgspec.structs.replace(flags.settings(), **alerts.settings())
    tls_context(settings)
    if settings.access_log:
        logging.getLogger("holdfast.access").setLevel(logging.INFO)
    with listening_on(settings) as listening:
        url, place = asyncio.run(_prepare(common))
        run(url, settings, listening, lambda where: _tell_started(where, place, common))


def _tell_started(where: str, place: str, common: Common) -> None:
    if common.json:
        print_json({"event": "started", "server": where})
    else:
        print(f"holdfast {__version__} on {printable(place, one_line=True)}: {where}", flush=True)
        say("Ctrl-C lets what was asked be answered, twice ends it at once")


def require_server() -> None:
    """Raises ConfigError where what it needs is not installed; without importing all of it."""
    if find_spec("uvicorn") is None:
        raise ConfigError("serving HTTP needs the package uvicorn: pip install 'holdfast[server]'")


def listening_else_free(port: int | None) -> socket.socket | None:
    """On loopback, for `up`: without a port that must be, any other will do. None where HTTP
    cannot be served, which is said."""
    try:
        require_server()
    except ConfigError as error:
        if port is not None:
            raise
        say(f"no server: {error}")
        return None
    settings = ServeFlags(port=PORT if port is None else port).settings()
    try:
        return listening_on(settings)
    except ConfigError:
        if port is not None:
            raise
        return listening_on(msgspec.structs.replace(settings, port=0))


def beside_workers(url: str, listening: socket.socket, alerts: dict[str, Any]) -> Program:
    """The socket stays with whoever starts it: while a server that was killed is started again,
    its clients wait and are not refused."""
    from holdfast.server.main import ServeOptions

    settings = ServeFlags(port=listening.getsockname()[1]).settings()
    settings = msgspec.structs.replace(settings, **alerts)
    options = ServeOptions(url=url, settings=settings, descriptor=listening.fileno())
    return Program(
        what="the server",
        module="holdfast.server.main",
        options=msgspec.json.encode(options),
        descriptors=(listening.fileno(),),
    )


def listening_on(settings: ServerSettings) -> socket.socket:
    from holdfast.server.binding import listener

    return listener(settings)


async def _prepare(common: Common) -> tuple[str, str]:
    """Whether there is such a place, before anybody is told of a server."""
    async with running(common, create=True) as app:
        if not app.engine.traits.durable:
            say("the jobs are in this process alone: when it ends they are gone")
        return app.url or "", app.place


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
