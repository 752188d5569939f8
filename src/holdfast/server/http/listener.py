"""The listening socket and its TLS context. Refuses an address that others could use without a
token."""

from __future__ import annotations

import errno
import ipaddress
import re
import resource
import socket
import ssl

from holdfast.errors import ConfigError
from holdfast.server.settings import ServerSettings

BACKLOG = 4096
_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_ORIGIN = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"
)
_RESERVED_FILES = 256
"""File descriptors reserved for other uses than connections: the store, the log, and a margin."""


def listen(settings: ServerSettings) -> socket.socket:
    """A listening socket at the address of the settings. ConfigError if that is not possible."""
    host, port = settings.host, settings.port
    if not 0 <= port <= 65_535:
        raise ConfigError(f"--port {port}: expected 0 to 65535; 0 takes a free port")
    for proxy in settings.proxies:
        _check_proxy(proxy)
    for name in settings.hosts:
        _check_host_name(name)
    if settings.hosts and not settings.auth_on:
        raise ConfigError(
            "--no-auth cannot be combined with --allow-host: callers on other machines use that"
            " name, and without tokens each of them could do anything; remove one of the two"
        )
    for origin in settings.origins:
        _check_origin(origin)
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        _refuse_open_address(settings, str(address[0]))
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        # asyncio sets this only on its own sockets; without it an answer waits 40 ms for an ACK.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise ConfigError(_listen_error(error, host, port)) from None


def server_url(listening: socket.socket, settings: ServerSettings) -> str:
    """The URL at which clients reach the server."""
    port = listening.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{port}"


def raise_connection_limit(wanted: int) -> int:
    """Raise this process's limit of open files, and return how many connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return (
        wanted if soft == resource.RLIM_INFINITY else max(16, min(wanted, soft - _RESERVED_FILES))
    )


def _check_proxy(text: str) -> None:
    """Proxies are addresses, not names: DNS must not decide whose headers are trusted."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigError(
            f"--proxy {text[:80]!r}: expected an address or network, e.g. 10.0.0.7 or 10.0.0.0/24"
        ) from None


def _check_host_name(text: str) -> None:
    """Refuse an invalid name at the start, not when every request is refused."""
    if not _HOST_NAME.fullmatch(text):
        raise ConfigError(
            f"--allow-host {text[:80]!r}: expected a host name such as jobs.example.com, without "
            "https:// and without a port"
        )


def _check_origin(text: str) -> None:
    """Origins are compared as text: a * or a trailing slash would never match."""
    if not _ORIGIN.fullmatch(text):
        raise ConfigError(
            f"--allow-origin {text[:80]!r}: expected an origin such as https://tools.example.com, "
            "with its port if it has one, and no path"
        )


def _refuse_open_address(settings: ServerSettings, address: str) -> None:
    """Decide by the resolved address: a name may resolve to another one tomorrow."""
    if not settings.auth_on and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        raise ConfigError(
            f"{settings.host} can be reached from other machines, and without tokens anyone could"
            " do anything: remove --no-auth, or listen on 127.0.0.1"
        )


def _listen_error(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} of {host} is in use, perhaps by another server: choose another with "
                "--port, or --port 0 for any free one"
            )
        case errno.EACCES:
            return f"no permission to listen on port {port}: choose one from 1024 up with --port"
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine: correct --host"
        case _:
            return f"cannot listen on {host} port {port}: {error.strerror or error}"


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """The TLS context (TLS 1.2 or newer) of the settings, or None for plain HTTP. ConfigError names
    a bad file.
    """
    if settings.tls_cert is None:
        if settings.tls_key or settings.tls_client_ca:
            raise ConfigError("TLS needs a server certificate: give it with --tls-cert")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Renegotiation would only let a client waste CPU.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except (OSError, ValueError) as error:
        files = ", ".join(filter(None, (settings.tls_cert, settings.tls_key)))
        raise ConfigError(
            f"cannot load the TLS certificate or its key ({files}): {error}"
        ) from None
    if settings.tls_client_ca is not None:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot load the CA bundle for clients ({settings.tls_client_ca}): {error}"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    """Called for an encrypted key: a service cannot prompt for a password."""
    raise ValueError(
        "the key is encrypted: store it without a password, readable only by the server's user"
    )
