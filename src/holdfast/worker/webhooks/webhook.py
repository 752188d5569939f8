"""The task `webhook`: a payload → one signed request, and its response → the result of the job.

Producers choose the URL, so only workers started with --webhooks run it. `client` decides which
addresses may be reached.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from holdfast.core import codec
from holdfast.core.model import WEBHOOK_TASK, Failure
from holdfast.core.text import printable
from holdfast.errors import ConfigError, UsageError
from holdfast.tracing import outgoing_headers
from holdfast.worker.child.context import Context
from holdfast.worker.child.handlers import Arguments, Handler
from holdfast.worker.options import WorkerOptions
from holdfast.worker.outcomes import Bury, Retry
from holdfast.worker.webhooks.client import (
    AddressRefused,
    Secrets,
    WebhookClient,
    WebhookRequest,
    WebhookResponse,
    signature,
)
from holdfast.worker.wire import WebhookSetup

RETRY_AFTER_S_MAX = 3600
_BUSY = (408, 425, 429)
_REPLY_MAX = 200
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}\Z")
_VALUE = re.compile(r"[\t\x20-\x7e]{0,4000}\Z")
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,240}\Z")
_TARGET = re.compile(r"[\x21-\x7e]{1,8000}\Z")
_OURS = ("host", "content-length", "transfer-encoding", "connection", "expect", "te", "upgrade")


class WebhookPayload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a webhook job. A text `body` is sent as it is, any other as JSON. `timeout` is
    in seconds."""

    url: str
    method: Literal["POST", "PUT", "PATCH", "DELETE", "GET"] = "POST"
    headers: dict[str, str] = {}
    body: Any = msgspec.UNSET
    timeout: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0


class _Destination(msgspec.Struct, frozen=True):
    url: str


class InvalidWebhook(UsageError):
    """The payload cannot be sent, and no further attempt would help: correct the payload."""

    code = "invalid_webhook"


class HttpStatus(Exception):
    """The receiver answered that it cannot handle the request now."""


class HttpRefused(Exception):
    """The receiver works, and refused the request."""


def is_answer(failure: Failure) -> bool:
    """True if this failure shows that the receiver works."""
    return failure.type == HttpRefused.__name__


def host_of(payload: bytes) -> str:
    """`name:port` of the receiver; empty if the payload names none."""
    try:
        host, port, _ = _parse_url(msgspec.json.decode(payload, type=_Destination).url)
    except (msgspec.DecodeError, RecursionError, ValueError, InvalidWebhook):
        return ""
    return f"{host}:{port}"


def webhook_handler(setup: WebhookSetup, wall_s: Callable[[], float] = time.time) -> Handler:
    """The handler of the task `webhook`."""
    client = WebhookClient(setup)
    secrets = Secrets(setup.secrets_file)

    async def deliver(hook: WebhookPayload, ctx: Context) -> dict[str, Any]:
        request = request_of(hook)
        request.headers.update(
            {
                "Holdfast-Job-Id": ctx.id,
                "Holdfast-Attempt": str(ctx.attempt),
                "Holdfast-Signature": signature(secrets.read(), int(wall_s()), request.body),
            }
        )
        if "traceparent" not in request.headers:
            request.headers.update(outgoing_headers(ctx.headers))
        answer = await client.ask(request, hook.timeout)
        return _result(answer, wall_s())

    return Handler(
        name=WEBHOOK_TASK,
        function=deliver,
        is_async=True,
        arguments=_arguments,
        result=codec.encode,
        context="ctx",
        give_up_on=(InvalidWebhook, AddressRefused),
    )


def webhook_setup(options: WorkerOptions) -> WebhookSetup:
    """The webhook settings, checked here so that a mistake is reported when the worker starts."""
    if options.webhook_secrets is None:
        raise ConfigError("webhooks must be signed: give a file of secrets with --webhook-secrets")
    for network in options.webhook_allow:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ConfigError(
                f"--webhook-allow: {error}; expected a network such as 10.0.0.0/8"
            ) from None
    setup = WebhookSetup(
        secrets_file=options.webhook_secrets,
        allow=options.webhook_allow,
        ca_file=options.webhook_ca,
    )
    Secrets(setup.secrets_file).read()
    try:
        _ = WebhookClient(setup).tls
    except OSError as error:
        raise ConfigError(f"--webhook-ca {options.webhook_ca}: {error}") from None
    return setup


def _arguments(payload: bytes, _content_type: str) -> Arguments:
    try:
        hook = msgspec.json.decode(payload, type=WebhookPayload)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InvalidWebhook(
            f'{error}; it should be {{"url": "https://…", "body": …}}, optionally with "method",'
            ' "headers" and "timeout"'
        ) from None
    request_of(hook)
    return (hook,), {}


def request_of(hook: WebhookPayload) -> WebhookRequest:
    """The request of a payload, without its signature."""
    host, port, parts = _parse_url(hook.url)
    target = parts.path or "/"
    if parts.query:
        target += f"?{parts.query}"
    if not _TARGET.match(target):
        raise InvalidWebhook("the path of the url has characters that must be percent-encoded")
    headers = {}
    for name, value in hook.headers.items():
        own = name.lower() in _OURS or name.lower().startswith("holdfast-")
        if own or not _NAME.match(name) or not _VALUE.match(value):
            raise InvalidWebhook(f"header {name[:80]!r} is not valid, or may not be set by a job")
        headers[name] = value
    body = b""
    if hook.body is not msgspec.UNSET:
        plain = isinstance(hook.body, str)
        body = hook.body.encode() if plain else codec.encode(hook.body)
        if "content-type" not in {name.lower() for name in headers}:
            headers["Content-Type"] = "text/plain; charset=utf-8" if plain else codec.JSON
    secure = parts.scheme == "https"
    return WebhookRequest(hook.method, secure, host, port, target, headers, body)


def _parse_url(url: str) -> tuple[str, int, SplitResult]:
    """Host, port and parts of a URL. Errors do not show the URL, which may hold a token."""
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode() if parts.hostname else ""
    except (ValueError, UnicodeError) as error:
        raise InvalidWebhook(f"the url cannot be read: {error}") from None
    if parts.scheme not in ("http", "https") or not _HOST.match(host):
        raise InvalidWebhook("the url must be http://… or https://… with a host")
    if parts.username is not None or parts.password is not None:
        raise InvalidWebhook("the url contains a user or a password: send a header instead")
    if port == 0:
        raise InvalidWebhook("the url has port 0")
    return host, port or (443 if parts.scheme == "https" else 80), parts


def _result(answer: WebhookResponse, now_s: float) -> dict[str, Any]:
    """The result of a job whose receiver accepted the request; raises otherwise."""
    status = answer.status
    if 200 <= status < 300:
        result: dict[str, Any] = {"status": status, "duration_ms": answer.duration_ms}
        if answer.body:
            result["body"] = answer.body.decode(errors="replace")
        return {**result, "truncated": True} if answer.truncated else result
    reply = printable(answer.body[:_REPLY_MAX].decode(errors="replace"), one_line=True).strip()
    text = f"HTTP {status}" + (f": {reply}" if reply else "")
    if status == 410:
        raise Bury(f"{text}: the receiver is gone permanently")
    if 300 <= status < 400:
        raise HttpRefused(f"{text}: redirects are not followed; give the final url")
    wait_s = _retry_after_s(answer.headers.get("retry-after", ""), now_s)
    if status in (429, 503) and wait_s is not None:
        raise Retry(text, after=min(wait_s, RETRY_AFTER_S_MAX))
    if 400 <= status < 500 and status not in _BUSY:
        raise HttpRefused(text)
    raise HttpStatus(text)


def _retry_after_s(text: str, now_s: float) -> float | None:
    """Seconds until a Retry-After header's time, given in seconds or as a date; None if invalid."""
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return float(text)
    try:
        instant = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return max(0.0, (instant - datetime.fromtimestamp(now_s, UTC)).total_seconds())
