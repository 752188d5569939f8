"""Everything a server can be told; the defaults are closed."""

from __future__ import annotations

import ipaddress

import msgspec

from holdfast.core import limits

PORT = 7433


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`auth` None is off where only this machine can ask, and a must everywhere else. `hosts` are
    the names a request may call the server by, beside loopback ones; `origins` the pages that may
    use it from a browser; `proxies` the addresses whose X-Forwarded-… is believed."""

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
    """Requests under way at once, of one namespace at most half of them; beyond, 503."""
    waiters_max: int = 2_000
    """Long-polls at once."""
    streams_max: int = 10_000
    """Event streams at once."""
    connections_max: int = 16_000
    held_bytes_max: int = 96 * 1024 * 1024
    """Bodies and answers in memory at once, of one namespace at most half of it."""
    lag_ms_max: int = limits.SECOND_MS
    """How far the server's loop may be behind before new requests are refused."""
    head_max: int = 64 * 1024
    """Bytes of a request line and its headers."""
    headers_max: int = 100
    head_ms_max: int = 10 * limits.SECOND_MS
    """From the first byte of a request, or from the connection, to the end of its headers."""
    slow_ms_max: int = 20 * limits.SECOND_MS
    """How long a reader may read nothing of what it asked for."""
    keep_alive_ms: int = 75 * limits.SECOND_MS
    request_ms_max: int = 30 * limits.SECOND_MS
    wait_ms_max: int = 60 * limits.SECOND_MS
    grace_ms: int = 10 * limits.SECOND_MS
    access_log: bool = False
    upkeep: bool = True
    archive: str | None = None
    alert_webhook: str | None = None
    """Where alerts are told; it may hold a secret, and is never shown."""
    alert_webhook_secrets: str | None = None
    alert_webhook_allow: tuple[str, ...] = ()
    alert_webhook_ca: str | None = None

    @property
    def on_loopback(self) -> bool:
        """Whether nobody but this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            # A name may be made to mean any address; this one never may.
            return self.host == "localhost"

    @property
    def auth_on(self) -> bool:
        """Whoever named proxies or other names for it means it for others than this machine."""
        if self.auth is not None:
            return self.auth
        return not self.on_loopback or bool(self.proxies or self.hosts)
