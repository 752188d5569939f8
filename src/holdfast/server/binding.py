"""Where a server listens: refused where strangers could ask without a token, and said clearly
when somebody else listens there."""

from __future__ import annotations

import errno
import ipaddress
import re
import resource
import socket

from holdfast.errors import ConfigError
from holdfast.server.settings import ServerSettings

BACKLOG = 4096
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_ORIGIN = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"
)
_OWN_FILES = 256
"""Descriptors that are not connections: the store's, the log's, and room to spare."""


def listener(settings: ServerSettings) -> socket.socket:
    """A socket that listens already, so that nobody who is told of it is refused."""
    host, port = settings.host, settings.port
    if not 0 <= port <= 65_535:
        raise ConfigError(f"the port {port} is not 0 to 65535; 0 takes a free one")
    for proxy in settings.proxies:
        _check_proxy(proxy)
    for name in settings.hosts:
        _check_name(name)
    for origin in settings.origins:
        _check_origin(origin)
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        _refuse_strangers(settings, str(address[0]))
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        # asyncio leaves it on for sockets of others: each answer would wait 40 ms for an ACK.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise ConfigError(_remedy(error, host, port)) from None


def url_of(listening: socket.socket, settings: ServerSettings) -> str:
    """As a client on this machine, or one that knows its address, writes it."""
    port = listening.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{port}"


def connections_allowed(wanted: int) -> int:
    """As many as are wanted, or as there can be descriptors for; raises this process's limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(16, min(wanted, soft - _OWN_FILES))


def _check_proxy(text: str) -> None:
    """What is believed of whom must not hang on how somebody's name is resolved."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigError(
            f"--proxy {text[:80]!r} is no address or network: write 10.0.0.7 or 10.0.0.0/24"
        ) from None


def _check_name(text: str) -> None:
    """One that no request can have would be found out only when all are refused."""
    if not _NAME.fullmatch(text):
        raise ConfigError(
            f"--allow-host {text[:80]!r} is no name of a host: write jobs.example.com, without "
            "https:// and without a port"
        )


def _check_origin(text: str) -> None:
    """As browsers write it, to the letter: with * it would be nobody's, and with a / at the end."""
    if not _ORIGIN.fullmatch(text):
        raise ConfigError(
            f"--allow-origin {text[:80]!r} is no origin: write https://tools.example.com, with its "
            "port if it has one, and nothing behind"
        )


def _refuse_strangers(settings: ServerSettings, address: str) -> None:
    """By the address and not by the name, which may mean another one tomorrow."""
    if not settings.auth_on and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        raise ConfigError(
            f"{settings.host} can be reached by others, and without tokens everybody could do "
            "everything: leave out --no-auth, or listen on 127.0.0.1"
        )


def _remedy(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} of {host} is in use, perhaps by another Holdfast: choose another "
                "with --port, or --port 0 for any that is free"
            )
        case errno.EACCES:
            return f"port {port} is not for everybody: choose one from 1024 up with --port"
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine: correct --host"
        case _:
            return f"it cannot listen on {host} port {port}: {error.strerror or error}"
