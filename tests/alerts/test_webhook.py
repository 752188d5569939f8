"""The alert webhook: signed requests, allowed addresses, and no URL in any error."""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.alerts.notify import Notice
from holdfast.alerts.webhook import AlertNotDelivered, AlertWebhook
from holdfast.errors import ConfigError
from holdfast.telemetry.event_log import FeedEventKind
from tests.worker.webhook_receiver import receiving
from tests.worker.webhooks.test_webhook import NEW, NOW, OLD, secrets_file, status

NOTICE = Notice(
    event=FeedEventKind.ALERT_RAISED,
    id="depth/mail/5/raised",
    namespace="default",
    rule="depth",
    severity="critical",
    about="mail",
    queue="mail",
    value=101,
    threshold=100,
    unit="jobs",
    text="101 jobs are ready in queue mail, \x1b[31mred",
    raised_at="2027-01-15T08:00:00Z",
)


def hook(folder: Path, port: int, *secrets: str, **more: Any) -> AlertWebhook:
    return AlertWebhook(
        f"http://127.0.0.1:{port}/in?token=hidden",
        secrets_file=secrets_file(folder, *secrets),
        wall_s=lambda: NOW,
        **{"allow": ("127.0.0.1/32",), **more},
    )


async def test_the_request_that_is_sent(tmp_path: Path) -> None:
    async with receiving() as receiver:
        await hook(tmp_path, receiver.port, NEW, OLD).deliver(NOTICE)
    [got] = receiver.got
    assert got.line == "POST /in?token=hidden HTTP/1.1"
    assert json.loads(got.body)["text"] == NOTICE.text
    assert json.loads(got.body)["event"] == "alert.raised"
    assert got.headers["content-type"] == "application/json"
    assert got.headers["holdfast-event"] == "alert.raised"
    signed = f"{NOW}.".encode() + got.body
    made = [hmac.new(each.encode(), signed, hashlib.sha256).hexdigest() for each in (NEW, OLD)]
    assert got.headers["holdfast-signature"] == f"t={NOW},v1={made[0]},v1={made[1]}"


@pytest.mark.parametrize("code", [301, 400, 410, 429, 500, 503])
async def test_a_refusal_is_reported_without_the_url(tmp_path: Path, code: int) -> None:
    async with receiving() as receiver:
        receiver.answer = status(code, f"Location: http://127.0.0.1:{receiver.port}/other")
        with pytest.raises(AlertNotDelivered) as caught:
            await hook(tmp_path, receiver.port).deliver(NOTICE)
    assert str(caught.value) == f"127.0.0.1 answered HTTP {code}"
    assert len(receiver.got) == 1, "no redirect is followed"


async def test_only_public_addresses_unless_allowed(tmp_path: Path) -> None:
    async with receiving() as receiver:
        with pytest.raises(AlertNotDelivered, match="--alert-webhook-allow"):
            await hook(tmp_path, receiver.port, allow=()).deliver(NOTICE)
    assert receiver.connections == 0


@pytest.mark.parametrize(
    ("url", "given", "says"),
    [
        ("https://example.org", {"secrets_file": None}, "--alert-webhook-secrets"),
        ("ftp://example.org/hidden", {}, "--alert-webhook: the url must be http"),
        ("https://a:hidden@example.org", {}, "--alert-webhook: the url contains a user"),
        ("https://example.org", {"allow": ("10.0.0.0/99",)}, "--alert-webhook-allow"),
        ("https://example.org", {"ca_file": "/none"}, "--alert-webhook-ca"),
        ("https://example.org", {"secrets_file": "/none"}, "cannot be read from /none"),
    ],
)
def test_an_invalid_webhook_is_refused_at_the_start(
    tmp_path: Path, url: str, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        AlertWebhook(url, **{"secrets_file": secrets_file(tmp_path), **given})
    assert "hidden" not in str(caught.value)
