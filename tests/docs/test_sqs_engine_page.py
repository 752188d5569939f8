"""Statements of docs/engines/sqs.md are those of the code."""

from __future__ import annotations

import json
import re

from holdfast.engines.sqs import client, delivery, messages, settings
from holdfast.engines.sqs.faults import iam_action
from tests.docs.test_docs import ROOT

PAGE = (ROOT / "docs" / "engines" / "sqs.md").read_text()


def test_the_policy_names_every_action_that_the_client_uses() -> None:
    found = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    statements = json.loads(found[1])["Statement"]
    actions = [action for each in statements for action in each["Action"]]
    allowed = {action for action in actions if action.startswith("sqs:")}
    used = {f"sqs:{iam_action(action)}" for action in (*client.ACTIONS, "ReceiveMessage")}
    assert allowed == used


def test_names_and_bounds() -> None:
    shown = [
        *(messages.TASK_ATTRIBUTE, messages.ENCODING_ATTRIBUTE, messages.JOB_ATTRIBUTE),
        *(
            messages.DEAD_ATTRIBUTE,
            delivery.ID_HEADER,
            delivery.URL_HEADER,
            delivery.ARN_HEADER,
        ),
        *(delivery.HANDLE_HEADER, delivery.RECEIVED_HEADER, delivery.POISON_HEADER),
        *(settings.TASK_TAG, settings.DEFAULT_TASK),
    ]
    for name in shown:
        assert f"`{name}`" in PAGE
    assert f"keeps messages for {settings.RETENTION_S // 86_400} days" in PAGE
    assert f"dead letters for {settings.DEAD_RETENTION_S // 86_400}" in PAGE
    assert f"is {settings.RECEIVES_ABOVE} above `max_attempts`" in PAGE
    assert f"polls each of its queues every {client.WAIT_S_MAX} seconds" in PAGE
