"""Connections to RabbitMQ: connecting, error texts, and reconnecting after random pauses.

Errors of the client library never leave this package: `amqp_errors` turns them into
EngineUnavailable. The library's own log lines are switched off unless the program sets a level.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import aiormq
from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelAccessRefused,
    ChannelInvalidStateError,
    InvalidFrameError,
    ProbableAuthenticationError,
)

from holdfast.core.text import printable
from holdfast.engines.rabbitmq import decode
from holdfast.errors import ConfigError, EngineUnavailable

CONNECT_S_MAX = 10.0
PAUSE_S, PAUSE_S_MAX = 0.1, 5.0
HEARTBEAT_S = 20
_END_S = 0.2
PORTS = {"amqp": 5672, "amqps": 5671}

_log = logging.getLogger("holdfast.rabbitmq")


class RabbitTarget(NamedTuple):
    """A broker and how to log in. `ca` and `cert` are files for TLS."""

    is_tls: bool
    host: str
    port: int
    user: str
    password: str
    vhost: str
    ca: str | None = None
    cert: str | None = None

    @classmethod
    def parse(cls, url: str, *, ca: str | None = None, cert: str | None = None) -> RabbitTarget:
        """Parse amqp://user:password@host:port/vhost, without options. Raises ConfigError."""
        try:
            parts = urlsplit(url)
            port = parts.port or PORTS[parts.scheme]
        except (ValueError, KeyError):
            raise ConfigError(_URL) from None
        is_tls = parts.scheme == "amqps"
        if not parts.hostname or parts.fragment or parts.query:
            raise ConfigError(_URL)
        if (ca or cert) and not is_tls:
            raise ConfigError("the options ca and cert are for amqps:// URLs")
        return cls(
            is_tls=is_tls,
            host=parts.hostname,
            port=port,
            user=unquote(parts.username or "guest"),
            password=unquote(parts.password or "guest"),
            vhost=unquote(parts.path[1:]) or "/",
            ca=ca,
            cert=cert,
        )

    @property
    def where(self) -> str:
        return f"RabbitMQ at {self.host}:{self.port}"


_URL = (
    "the amqp URL cannot be parsed: write amqp://user:password@host:port/vhost, with special"
    " characters in the password and the virtual host percent-encoded"
)


async def dial(target: RabbitTarget, name: str = "holdfast") -> aiormq.Connection:
    """Connect. Raises EngineUnavailable with the reason, ConfigError if a file is unusable."""
    _quieten()
    decode.install()
    scheme = "amqps" if target.is_tls else "amqp"
    host = f"[{target.host}]" if ":" in target.host else target.host
    login = f"{quote(target.user, safe='')}:{quote(target.password, safe='')}"
    # The library reads its options from the URL.
    url = f"{scheme}://{login}@{host}:{target.port}/?heartbeat={HEARTBEAT_S}"
    connection = aiormq.Connection(
        url, context=_tls(target), client_properties={"connection_name": name}
    )
    connection.vhost = target.vhost
    with amqp_errors(target):
        async with asyncio.timeout(CONNECT_S_MAX):
            await connection.connect()
    return connection


@contextlib.contextmanager
def amqp_errors(target: RabbitTarget) -> Iterator[None]:
    """Turn the errors of the client library into EngineUnavailable."""
    try:
        yield
    except asyncio.CancelledError:
        # The library cancels the futures of a connection that ends; its caller was not cancelled.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise EngineUnavailable(_closed(target)) from None
    except (AMQPError, ChannelInvalidStateError, OSError, RuntimeError, TimeoutError) as error:
        raise EngineUnavailable(explain(target, error)) from error
    except Exception as error:
        # The library may end a call of a lost connection with a bare Exception.
        if type(error) is not Exception:
            raise
        raise EngineUnavailable(_closed(target)) from error


def _closed(target: RabbitTarget) -> str:
    return f"{target.where} closed the connection"


def explain(target: RabbitTarget, error: BaseException) -> str:
    """The cause of a failure, in one line."""
    if isinstance(error, ProbableAuthenticationError | AuthenticationError):
        return f"{target.where} refuses the user {target.user!r}: check name and password"
    if isinstance(error, InvalidFrameError) and "Connection.OpenOk" in str(error):
        return (
            f"{target.where} refuses the virtual host {target.vhost!r}: it does not exist, or the"
            f" user {target.user!r} may not use it"
        )
    if isinstance(error, ChannelAccessRefused):
        return f"{target.where}: {reply_text(error)}: give the user {target.user!r} permission"
    if isinstance(error, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError):
        return f"{target.where}: TLS failed: {printable(_cause(error), one_line=True)}"
    if isinstance(error, TimeoutError) and not error.args:
        return f"{target.where} does not answer"
    if isinstance(error, OSError):
        return f"{target.where} cannot be reached: {printable(_cause(error), one_line=True)}"
    return f"{target.where}: {reply_text(error)}"


def reply_text(error: BaseException) -> str:
    """The broker's own words, without the name of the code."""
    text = next((one for one in error.args if isinstance(one, str) and one), type(error).__name__)
    return printable(text.partition(" - ")[2] or text, one_line=True)


class Reconnecting:
    """Keeps a connection: `serve` runs while there is one, and returns or raises when it is lost.

    `error` is why there is none, "" while there is one. Each change of it is one line in the log.
    """

    def __init__(
        self,
        target: RabbitTarget,
        serve: Callable[[aiormq.Connection], Awaitable[None]],
        on_loss: Callable[[], None],
    ) -> None:
        self.target = target
        self.has_failed: bool = False
        """Whether the last attempt failed, or the connection was lost."""
        self.error: str = f"{target.where} is not connected yet"
        self.connection: aiormq.Connection | None = None
        self._serve = serve
        self._on_loss = on_loss
        self._task: asyncio.Task[None] | None = None
        self._told: str | None = None
        self._tried = asyncio.Event()

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await end_tasks([task])

    async def first_attempt(self, timeout_s: float) -> bool:
        """Wait until the first attempt to connect has succeeded or failed; False if it takes
        longer."""
        if self.is_running and not self._tried.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._tried.wait()
        return self._tried.is_set() or not self.is_running

    def note_up(self) -> None:
        """Note that the connection works. `serve` calls it once everything it needs is declared."""
        self.error = ""
        self.has_failed = False
        self._tried.set()
        if self._told != "":
            _log.info("%s is connected", self.target.where)
        self._told = ""

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._connect_and_serve()
                self.error = f"{self.target.where} closed the connection"
            except (EngineUnavailable, ConfigError) as error:
                self.error = str(error)
            except Exception as error:  # noqa: BLE001
                # A fault of ours or of the library must not end the reconnecting.
                self.error = f"{self.target.where}: {error!r}"
            self.has_failed = True
            self._tried.set()
            self._on_loss()
            failures = 1 if self._told == "" else failures + 1
            if self.error != self._told:
                _log.warning("%s; until it is back, jobs are found by polling", self.error)
                self._told = self.error
            pause_s = min(PAUSE_S_MAX, PAUSE_S * 2 ** min(failures, 10))
            await asyncio.sleep(random.uniform(0, pause_s))

    async def _connect_and_serve(self) -> None:
        connection = await dial(self.target)
        self.connection = connection
        try:
            await self._serve(connection)
        finally:
            self.connection = None
            await hang_up(connection)


async def hang_up(connection: aiormq.Connection) -> None:
    """Close a connection, for at most a moment."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(1.0):
            await connection.close()


async def run_together(*works: Coroutine[Any, Any, None]) -> None:
    """Run these until the first of them ends or fails, then end the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await end_tasks(tasks)


async def end_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks until they have ended: while a connection is closed, the client library may turn
    a cancellation into another error, which a task takes for one that it can handle."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_END_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()


def _tls(target: RabbitTarget) -> ssl.SSLContext | None:
    if not target.is_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=target.ca)
        if target.cert is not None:
            context.load_cert_chain(target.cert)
    except (OSError, ssl.SSLError) as error:
        files = " or ".join(filter(None, (target.ca, target.cert)))
        raise ConfigError(f"the certificates in {files} cannot be read: {error}") from error
    return context


def _cause(error: BaseException) -> str:
    cause = error.__cause__ if error.__cause__ is not None else error
    if isinstance(cause, asyncio.IncompleteReadError):
        return "its answer is not AMQP: check the port"
    if isinstance(cause, ConnectionError) and cause.errno is not None:
        # The event loop's own text repeats the address.
        return os.strerror(cause.errno)
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def _quieten() -> None:
    """Every failure is reported by this module once. The library would add tracebacks."""
    logger = logging.getLogger("aiormq")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL + 1)
