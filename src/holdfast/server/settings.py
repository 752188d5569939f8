"""The settings of a server. By default it accepts connections only from this machine."""

from __future__ import annotations

import ipaddress
from typing import Literal

import msgspec

from holdfast.core import bounds
from holdfast.process import LogFormat, LogLevel

PORT = 7433

SqsMode = Literal["strict", "relaxed", "off"]


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`auth` None requires tokens unless only this machine can connect. `hosts` are names of the
    server in Host headers, in addition to loopback ones; `origins` the web pages that may use it
    from a browser; `proxies` the addresses whose X-Forwarded-… headers are trusted.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    auth: bool | None = None
    namespaces: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    body_max: int = 32 * 1024 * 1024
    requests_max: int = 512
    """Concurrent requests with a complete body; one namespace gets at most half. Beyond it, 503."""
    bodies_max: int = 4_000
    """Requests whose body is unfinished; one namespace gets at most half. Beyond it, the oldest is
    ended."""
    waiters_max: int = 5_000
    """Concurrent long-polls; one namespace gets at most half."""
    streams_max: int = 10_000
    """Concurrent event streams."""
    connections_max: int = 16_000
    held_bytes_max: int = 96 * 1024 * 1024
    """Bytes of bodies and answers in memory; one namespace gets at most half."""
    lag_ms_max: int = bounds.SECOND_MS
    """Lag of the event loop above which new requests are refused."""
    head_max: int = 64 * 1024
    """Bytes of a request line and headers."""
    headers_max: int = 100
    head_ms_max: int = 10 * bounds.SECOND_MS
    """Time from the connection, or the first byte of a request, to the end of its headers."""
    slow_ms_max: int = 20 * bounds.SECOND_MS
    """The longest time a client may go without reading its answer."""
    keep_alive_ms: int = 75 * bounds.SECOND_MS
    request_ms_max: int = 30 * bounds.SECOND_MS
    wait_ms_max: int = 60 * bounds.SECOND_MS
    grace_ms: int = 10 * bounds.SECOND_MS
    access_log: bool = False
    log_format: LogFormat = "text"
    log_level: LogLevel | None = None
    upkeep: bool = True
    sqs: SqsMode = "strict"
    """Whether SQS clients are answered. `relaxed` leaves out AWS's pauses of 60 seconds after a
    queue was purged or deleted."""
    dashboard: bool = True
    read_only: bool = False
    """Whether every operation that changes something is refused, whoever asks for it."""
    archive: str | None = None
    brokers: dict[str, str] = {}
    """URLs of brokers by name, for the gates of the namespace `default`. They may contain
    passwords, and are never shown."""
    cloudwatch: str | None = None
    """The CloudWatch namespace in which upkeep publishes metrics of queues."""
    alert_webhook: str | None = None
    """URL for alerts. It may contain a secret, and is never shown."""
    alert_webhook_secrets: str | None = None
    alert_webhook_allow: tuple[str, ...] = ()
    alert_webhook_ca: str | None = None

    @property
    def on_loopback(self) -> bool:
        """True if only this machine can connect to the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            # Any other name may resolve to an address that others reach.
            return self.host == "localhost"

    @property
    def auth_on(self) -> bool:
        """True if callers need tokens. Settings for proxies or hosts imply callers on other
        machines."""
        if self.auth is not None:
            return self.auth
        return not self.on_loopback or bool(self.proxies or self.hosts)
