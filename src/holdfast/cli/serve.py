"""`holdfast serve`: the HTTP server in the foreground. `holdfast up`: one along with workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from cyclopts import Parameter

from holdfast import __version__
from holdfast.alerts.webhook import AlertWebhook
from holdfast.cli.flags import (
    Archive,
    BrokerUrls,
    CloudWatch,
    LogFormatFlag,
    Upkeep,
    archive_path,
    cloudwatch_namespace,
    option,
    switch,
    urls_of_brokers,
)
from holdfast.cli.help_pages import program
from holdfast.cli.output import COMMON, Common, print_either, print_json, say
from holdfast.cli.session import open_app
from holdfast.cli.workers import (
    WORKER_FLAGS,
    Count,
    Target,
    WorkerFlags,
    note_stopping,
    prepare_workers,
    start_notes,
    with_store_of,
)
from holdfast.core.text import printable
from holdfast.engines.registry import default_url, redacted
from holdfast.errors import ConfigError, UsageError
from holdfast.notation.durations import to_ms
from holdfast.ops.tokens import access_key_of
from holdfast.process import LogLevel, log_to_stderr, read_local_token
from holdfast.server.settings import PORT, ServerSettings, SqsMode
from holdfast.worker import launcher
from holdfast.worker.managed_process import Program

_TRY_NEXT = """\
running: {running}; Ctrl-C drains and stops them
{dashboard}in another terminal:
  {program} enqueue{url} --wait -- echo hello
  {program} status{url}
  {program} top{url}"""

Dashboard = Annotated[
    bool, Parameter(help="Serve the dashboard at /. Without it, / leads to the API's description.")
]
ReadOnlyServer = Annotated[
    bool,
    switch(
        "Refuse every request that changes something. Producers, and workers that connect over"
        " HTTP, need another server."
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class ServeFlags:
    """Settings of the server."""

    host: Annotated[
        str, option("ADDRESS", "Listen on this address. All but loopback require tokens.")
    ] = "127.0.0.1"
    port: Annotated[int, option("PORT", "Listen on this port; 0 picks a free one.")] = PORT
    auth: Annotated[
        bool | None,
        Parameter(
            help="Require a token from every caller; --no-auth: from none, on loopback only."
            " [default: on loopback, from other users; elsewhere, from all]"
        ),
    ] = None
    allow_host: Annotated[
        list[str] | None,
        option("NAME...", "Also accept requests for this host name. Repeatable."),
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        option(
            "URL...",
            "Accept requests from web pages of this origin, e.g. https://tools.test. Repeatable.",
        ),
    ] = None
    proxy: Annotated[
        list[str] | None,
        option("ADDRESS...", "Trust X-Forwarded-For from this proxy. Repeatable."),
    ] = None
    namespace: Annotated[
        list[str] | None, option("NAME...", "Also serve this namespace. Repeatable.")
    ] = None
    tls_cert: Annotated[Path | None, option("PATH", "Server certificate; turns on HTTPS.")] = None
    tls_key: Annotated[Path | None, option("PATH", "Private key of the certificate.")] = None
    tls_client_ca: Annotated[
        Path | None, option("PATH", "Require client certificates issued by this CA.")
    ] = None
    grace: Annotated[
        str, option("DURATION", "Give open requests this long to finish when stopping.")
    ] = "10s"
    body_max: Annotated[int, option("BYTES", "Refuse requests with a larger body.")] = (
        32 * 1024 * 1024
    )
    requests_max: Annotated[int, option("N", "Handle at most this many requests at a time.")] = 512
    connections_max: Annotated[int, option("N", "Keep at most this many connections open.")] = (
        16_000
    )
    access_log: Annotated[bool, Parameter(help="Log each request as a line of JSON.")] = False
    log_format: LogFormatFlag = None
    log_level: Annotated[
        LogLevel | None,
        option("LEVEL", "Log messages of this level and above. [default: warning]"),
    ] = None
    sqs: Annotated[
        SqsMode,
        option(
            "MODE",
            "Answer SQS clients as AWS does (strict), without its 60 s pauses after a queue is"
            " purged or deleted (relaxed), or not at all (off).",
        ),
    ] = "strict"
    dashboard: Dashboard = True
    read_only: ReadOnlyServer = False
    upkeep: Upkeep = True
    archive: Archive = None
    broker: BrokerUrls = None
    cloudwatch: CloudWatch = None

    @property
    def sets_log(self) -> bool:
        return self.log_format is not None or self.log_level is not None

    def settings(self) -> ServerSettings:
        """The settings of the server. Raises UsageError."""
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
            grace_ms=to_ms("--grace", self.grace, UsageError),
            body_max=self.body_max,
            requests_max=self.requests_max,
            connections_max=self.connections_max,
            access_log=self.access_log,
            log_format=self.log_format or "text",
            log_level=self.log_level,
            sqs=self.sqs,
            dashboard=self.dashboard,
            read_only=self.read_only,
            upkeep=self.upkeep,
            archive=archive_path(self.archive),
            brokers=urls_of_brokers(self.broker, upkeep=self.upkeep),
            cloudwatch=cloudwatch_namespace(self.cloudwatch, upkeep=self.upkeep),
        )


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class UpServerFlags:
    """Settings of the server that runs next to workers."""

    port: Annotated[
        int | None,
        option("PORT", "Port of the server. [default: 7433, or a free one if it is taken]"),
    ] = None
    dashboard: Dashboard = True
    read_only: ReadOnlyServer = False

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerSettings`, without the port."""
        return {"dashboard": self.dashboard, "read_only": self.read_only}


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class AlertFlags:
    """Destination of the server's alerts."""

    alert_webhook: Annotated[str | None, option("URL", "Send signed alerts to this URL.")] = None
    alert_webhook_secrets: Annotated[
        Path | None, option("PATH", "File of the secrets that sign alerts, one per line.")
    ] = None
    alert_webhook_allow: Annotated[
        list[str] | None,
        option("NETWORK...", "Allow alerts to this private network, e.g. 10.0.0.0/8. Repeatable."),
    ] = None
    alert_webhook_ca: Annotated[
        Path | None, option("PATH", "CA bundle for alert TLS, instead of the system's.")
    ] = None

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerSettings`. Raises UsageError or ConfigError."""
        if self.alert_webhook is None:
            if self != AlertFlags():
                raise UsageError("--alert-webhook is missing: without it alerts are not sent")
            return {}
        settings: dict[str, Any] = {
            "alert_webhook_secrets": _absolute(self.alert_webhook_secrets),
            "alert_webhook_allow": tuple(self.alert_webhook_allow or ()),
            "alert_webhook_ca": _absolute(self.alert_webhook_ca),
        }
        AlertWebhook(
            self.alert_webhook,
            secrets_file=settings["alert_webhook_secrets"],
            allow=settings["alert_webhook_allow"],
            ca_file=settings["alert_webhook_ca"],
        )
        return {"alert_webhook": self.alert_webhook, **settings}


_FLAGS = ServeFlags()
_ALERTS = AlertFlags()


def serve(
    *, flags: ServeFlags = _FLAGS, alerts: AlertFlags = _ALERTS, common: Common = COMMON
) -> None:
    """Serve the queues over HTTP.

    Programs in any language and workers on other machines can then use them.
    """
    require_server()
    from holdfast.server.http.listener import tls_context
    from holdfast.server.main import run

    settings = msgspec.structs.replace(flags.settings(), **alerts.settings())
    tls_context(settings)
    log_to_stderr(
        program(), settings.log_level or "warning", settings.log_format, again=flags.sets_log
    )
    if settings.access_log:
        logging.getLogger("holdfast.access").setLevel(logging.INFO)
    with open_listener(settings) as listening:
        url, place = asyncio.run(_prepare(common))
        in_text = settings.log_format == "text"
        run(url, settings, listening, lambda at: _print_started(at, place, common, hint=in_text))


def _print_started(where: str, place: str, common: Common, *, hint: bool) -> None:
    """`hint` also says on standard error how to stop the server."""
    key = local_access_key(where)
    started = {"event": "started", "server": where, **key}
    print_either(started, f"holdfast {__version__} on {place}: {where}", common)
    if not common.json:
        print_access_key(key)
        if hint:
            say("Ctrl-C finishes open requests and stops; a second Ctrl-C stops at once")


def local_access_key(server: str) -> dict[str, str]:
    """The access key of a server that cannot identify the user of a connection: AWS clients of its
    own user sign with it. Empty for other servers."""
    at = urlsplit(server)
    token = read_local_token(at.hostname or "", at.port or 0)
    if not token:
        return {}
    return dict(zip(("access_key_id", "secret_access_key"), access_key_of(token), strict=True))


def print_access_key(key: dict[str, str]) -> None:
    """Print the access key of the server, if it has one."""
    if key:
        print("access key for AWS clients, valid until the server stops:")
        print(f"  AWS_ACCESS_KEY_ID={key['access_key_id']}")
        print(f"  AWS_SECRET_ACCESS_KEY={key['secret_access_key']}", flush=True)


def require_server() -> None:
    """Raise ConfigError if the packages of the server are not installed."""
    if find_spec("uvicorn") is None:
        raise ConfigError("serving HTTP needs the package uvicorn: pip install 'holdfast[server]'")


def listener_for_up(port: int | None) -> socket.socket | None:
    """A listening socket on loopback, on any free port if the usual one is taken and --port was not
    given. None, with a note, if the server is not installed.
    """
    try:
        require_server()
    except ConfigError as error:
        if port is not None:
            raise
        say(f"no server is started: {error}")
        return None
    settings = ServeFlags(port=PORT if port is None else port).settings()
    try:
        return open_listener(settings)
    except ConfigError:
        if port is not None:
            raise
        return open_listener(msgspec.structs.replace(settings, port=0))


def server_program(url: str, listening: socket.socket, given: dict[str, Any]) -> Program:
    """The server as a program next to the workers; `given` are fields of its settings. The launcher
    holds the socket, so that clients wait instead of being refused while a killed server restarts.
    """
    from holdfast.server.main import ServeOptions

    settings = ServeFlags(port=listening.getsockname()[1]).settings()
    # The workers run the gates.
    settings = msgspec.structs.replace(settings, **given, brokers={})
    options = ServeOptions(url=url, settings=settings, descriptor=listening.fileno())
    return Program(
        what="the server",
        module="holdfast.server.main",
        options=msgspec.json.encode(options),
        descriptors=(listening.fileno(),),
    )


def open_listener(settings: ServerSettings) -> socket.socket:
    """The listening socket. Raises ConfigError."""
    from holdfast.server.http.listener import listen

    return listen(settings)


_SERVER = UpServerFlags()


def up(
    *,
    count: Count = 2,
    app: Target = None,
    serve: Annotated[bool, Parameter(help="Also serve HTTP, on this machine only.")] = True,
    server: UpServerFlags = _SERVER,
    alerts: AlertFlags = _ALERTS,
    flags: WorkerFlags = WORKER_FLAGS,
    common: Common = COMMON,
) -> int:
    """Start workers, upkeep and a server with one command."""
    alert_settings = alerts.settings()
    if not serve and server != _SERVER:
        raise UsageError(
            "--port, --no-dashboard and --read-only need the server: leave out --no-serve"
        )
    if alert_settings and not serve:
        raise UsageError("alerts are sent by the server: leave out --no-serve")
    with contextlib.ExitStack() as stack:
        listening = listener_for_up(server.port) if serve else None
        if listening is not None:
            stack.enter_context(listening)
        common = with_store_of(app, common)
        workers, place = asyncio.run(prepare_workers(common, flags, app, count))
        if not common.json:
            print(f"holdfast {__version__} on {printable(place, one_line=True)}")
        programs = []
        if listening is not None:
            log = {"log_format": flags.log_format or "text", "log_level": flags.log_level}
            given = {**alert_settings, **server.settings(), **log}
            programs = [server_program(workers[0].url, listening, given)]
        note = start_notes(flags.log_format, flags.log_level)
        code = launcher.run(
            workers,
            programs=programs,
            started=lambda names: _print_running(
                names[:count], names[count:], common, dashboard=server.dashboard
            ),
            asked=partial(note_stopping, note),
        )
    if not common.json and code == 0:
        print("stopped", flush=True)
    return code


def _print_running(
    workers: list[str], servers: list[str], common: Common, *, dashboard: bool
) -> None:
    server = next(iter(servers), None)
    key = {} if server is None else local_access_key(server)
    if common.json:
        print_json({"event": "started", "workers": sorted(workers), "server": server, **key})
    else:
        running = ", ".join([*sorted(workers), *servers])
        # A URL with a password is not repeated.
        is_plain = common.url and redacted(common.url) == common.url != default_url()
        url = f" --url {common.url}" if is_plain else ""
        link = f"dashboard: {server}/\n" if server is not None and dashboard else ""
        shown = _TRY_NEXT.format(running=running, dashboard=link, program=program(), url=url)
        print(shown, flush=True)
        print_access_key(key)


async def _prepare(common: Common) -> tuple[str, str]:
    """Open the store once, so that a wrong URL is an error before the server is announced."""
    async with open_app(common, create=True) as app:
        if not app.engine.traits.durable:
            say("jobs are stored in memory only: they are lost when this process ends")
        return app.url or "", app.place


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
