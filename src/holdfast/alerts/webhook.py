"""Alerts as signed requests to one place, in the way and with the care of webhook jobs.

The URL may hold a secret: it is in no log, no record and no error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from holdfast.alerts.telling import Notice
from holdfast.errors import ConfigError
from holdfast.worker.options import WorkerOptions
from holdfast.worker.signing import Secrets, signature
from holdfast.worker.webclient import AddressRefused, Client
from holdfast.worker.webhook import InvalidWebhook, WebhookPayload, request_of, webhook_setup

TIMEOUT_S = 10.0


class NotTaken(Exception):
    """The receiver did not say 2xx."""


class Hook:
    """Raises ConfigError for what cannot be."""

    def __init__(
        self,
        url: str,
        *,
        secrets_file: str | None,
        allow: Sequence[str] = (),
        ca_file: str | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        if secrets_file is None:
            raise ConfigError(
                "alerts are signed: name a file with secrets by --alert-webhook-secrets"
            )
        options = WorkerOptions(
            url="", webhook_secrets=secrets_file, webhook_allow=tuple(allow), webhook_ca=ca_file
        )
        try:
            setup = webhook_setup(options)
            request_of(WebhookPayload(url=url))
        except InvalidWebhook as error:
            raise ConfigError(f"--alert-webhook: {error}") from None
        except ConfigError as error:
            raise ConfigError(str(error).replace("--webhook-", "--alert-webhook-")) from None
        self._url = url
        self._secrets = Secrets(setup.secrets_file)
        self._client = Client(setup)
        self._wall_s = wall_s

    async def deliver(self, notice: Notice) -> None:
        """Once; who asked tries again."""
        request = request_of(WebhookPayload(url=self._url, body=msgspec.to_builtins(notice)))
        request.headers.update(
            {
                "Holdfast-Event": notice.event,
                "Holdfast-Signature": signature(
                    self._secrets.read(), int(self._wall_s()), request.body
                ),
            }
        )
        try:
            answer = await self._client.ask(request, TIMEOUT_S)
        except AddressRefused:
            raise NotTaken(
                f"{request.host} is at no public address: allow it with --alert-webhook-allow"
            ) from None
        if not 200 <= answer.status < 300:
            raise NotTaken(f"{request.host} answered HTTP {answer.status}")
