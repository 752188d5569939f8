"""Send alert notices as signed requests to one URL, with the protections of webhook jobs.

The URL may contain a secret: it never appears in a log, record or error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from holdfast.alerts.notify import Notice
from holdfast.errors import ConfigError
from holdfast.worker.options import WorkerOptions
from holdfast.worker.webhooks.client import AddressRefused, Secrets, WebhookClient, signature
from holdfast.worker.webhooks.webhook import (
    InvalidWebhook,
    WebhookPayload,
    request_of,
    webhook_setup,
)

TIMEOUT_S = 10.0


class AlertNotDelivered(Exception):
    """The receiver did not answer with 2xx."""


class AlertWebhook:
    """The webhook of all alerts. ConfigError if the URL or the secrets cannot be used."""

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
                "alerts must be signed: give a file of secrets with --alert-webhook-secrets"
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
        self._client = WebhookClient(setup)
        self._wall_s = wall_s

    async def deliver(self, notice: Notice) -> None:
        """Send a notice once. Raises unless the receiver accepted it; the alerter tries again."""
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
            raise AlertNotDelivered(
                f"{request.host} has no public address: allow it with --alert-webhook-allow"
            ) from None
        if not 200 <= answer.status < 300:
            raise AlertNotDelivered(f"{request.host} answered HTTP {answer.status}")
