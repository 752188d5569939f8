"""docs/sqs-compatibility.md has every action, attribute and limit, with the values of the code."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, get_args

import botocore.session
import msgspec
import pytest

from holdfast.core import bounds
from holdfast.ops import sqs as records
from holdfast.server.settings import ServerSettings, SqsMode
from holdfast.server.sqs import (
    endpoint,
    leases,
    message_attributes,
    message_jobs,
    messages,
    metrics,
    moves,
    queue_attributes,
    queues,
    receipts,
    receive,
)
from holdfast.server.sqs.errors import SqsError
from holdfast.server.sqs.queue_attributes import QueueAttributes, changed_attributes
from holdfast.server.sqs.shapes import ACTIONS
from tests.docs.test_docs import ROOT

PAGE = (ROOT / "docs" / "sqs-compatibility.md").read_text()
STATUSES = ("exact", "differs", "missing")

LIMITS = {
    "length of a queue name": queue_attributes.QUEUE_NAME_MAX,
    "size of a message": QueueAttributes().maximum_message_size,
    "size of a batch": messages.BATCH_BYTES_MAX,
    "entries of a batch": messages.BATCH_MAX,
    "messages in one receive": receive.RECEIVED_MAX,
    "names of attributes in one receive": receive.NAMES_MAX,
    "attributes of a message": message_attributes.ATTRIBUTES_MAX,
    "length of an attribute name": message_attributes.NAME_MAX,
    "wait of a receive": receive.WAIT_S_MAX,
    "visibility timeout": queue_attributes.VISIBILITY_S_MAX,
    "delay of a message": message_jobs.DELAY_S_MAX,
    "deduplication window": message_jobs.DEDUP_MS // bounds.SECOND_MS,
    "messages in flight": leases.IN_FLIGHT_MAX,
    "length of a receipt handle": receipts.HANDLE_MAX,
    "tags of a queue": records.TAGS_MAX,
    "size of a policy": queue_attributes.POLICY_BYTES_MAX,
    "source queues of a redrive-allow policy": queue_attributes.SOURCE_ARNS_MAX,
    "results of a list": queues.RESULTS_MAX,
    "remembered move tasks": records.TASKS_MAX,
    "messages per second of a move task": moves.RATE_MAX,
    "pause after a purge or a deletion": queues.PAUSE_MS // bounds.SECOND_MS,
    "size of a request": endpoint.BODY_MAX,
    "long polls of a server": ServerSettings().waiters_max,
    "requests per second": None,
}


def table(heading: str) -> list[dict[str, str]]:
    """The rows under a heading, by the names of the columns."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def names(rows: list[dict[str, str]], column: str) -> list[str]:
    return [row[column].strip("`") for row in rows]


@cache
def model() -> Any:
    return botocore.session.get_session().get_service_model("sqs")


def enumerated(shape: str) -> set[str]:
    return set(model().shape_for(shape).enum) - {"All"}


@pytest.mark.parametrize(
    "heading",
    [
        "Actions",
        "Queue attributes",
        "Message system attributes",
        "Limits",
        "Metrics",
        "Protocols, signatures and regions",
    ],
)
def test_each_row_has_a_status_and_says_how_it_differs(heading: str) -> None:
    rows = table(heading)
    assert rows
    for row in rows:
        assert row["status"] in STATUSES, row
        assert row["note"] or row["status"] != "differs", row


def test_actions() -> None:
    rows = table("Actions")
    assert names(rows, "action") == sorted(model().operation_names)
    handled = {name for name in ACTIONS if name in endpoint.HANDLERS}
    there = {row["action"].strip("`") for row in rows if row["status"] != "missing"}
    assert there == handled


def test_queue_attributes() -> None:
    rows = table("Queue attributes")
    assert names(rows, "attribute") == sorted(enumerated("QueueAttributeName"))
    there = {row["attribute"].strip("`") for row in rows if row["status"] != "missing"}
    assert there == queue_attributes.ATTRIBUTE_NAMES - {"All"}


@pytest.mark.parametrize("row", table("Queue attributes"), ids=lambda row: row["attribute"])
def test_values_of_a_queue_attribute(row: dict[str, str]) -> None:
    name, values = row["attribute"].strip("`"), row["values"]
    before = QueueAttributes(fifo_queue=True, deduplication_scope="messageGroup")
    if "perMessageGroupId" not in values and "messageGroup" in values:
        before = QueueAttributes(fifo_queue=True)
    if values == "read-only":
        refuse(before, name, "1")
    elif numbers := re.fullmatch(r"(\d+) to (\d+)", values):
        least, most = int(numbers[1]), int(numbers[2])
        for value in (least, most):
            changed_attributes(before, {name: str(value)})
        for value in (least - 1, most + 1):
            refuse(before, name, str(value))
    elif words := re.findall(r"`(\w+)`", values):
        for word in words:
            changed_attributes(before, {name: word})
        refuse(before, name, "other")
        for word in {"true", "false"} & set(words) and {"true", "false"} - set(words):
            refuse(before, name, word)
    else:
        assert values in ("JSON", "text")
        if values == "JSON":
            refuse(before, name, "{")


def refuse(before: QueueAttributes, name: str, value: str) -> None:
    with pytest.raises(SqsError):
        changed_attributes(before, {name: value})


def test_defaults_of_queue_attributes() -> None:
    shown = queue_attributes.shown_attributes(QueueAttributes(fifo_queue=True))
    rows = table("Queue attributes")
    told = {row["attribute"].strip("`"): row["default"].strip("`") for row in rows}
    assert {name: value for name, value in told.items() if value} == {
        name: value for name, value in shown.items() if name != "FifoQueue"
    }


def test_message_system_attributes() -> None:
    rows = table("Message system attributes")
    assert names(rows, "attribute") == sorted(enumerated("MessageSystemAttributeName"))


@pytest.mark.parametrize("row", table("Limits"), ids=lambda row: row["limit"])
def test_a_limit(row: dict[str, str]) -> None:
    limit = LIMITS[row["limit"]]
    found = re.match(r"\d+", row["Holdfast"])
    assert (int(found[0]) if found else None) == limit
    if row["status"] == "exact":
        assert row["AWS"] == row["Holdfast"]


def test_limits_are_complete() -> None:
    assert names(table("Limits"), "limit") == list(LIMITS)


def test_metrics() -> None:
    rows = table("Metrics")
    there = [row["metric"].strip("`") for row in rows if row["status"] != "missing"]
    fields = (each.encode_name for each in msgspec.structs.fields(metrics.SqsMetrics))
    assert there == sorted(name for name in fields if name != "QueueName")
    exposed = {row["`/metrics`"].strip("`") for row in rows}
    families = metrics.families([], {})
    assert exposed - {""} == {
        each.name + ("_total" if each.type == "counter" else "") for each in families
    }


def test_modes_on_the_guide() -> None:
    guide = (ROOT / "docs" / "sqs.md").read_text()
    modes = re.findall(r"^\| `([a-z]+)` \| ", guide, re.MULTILINE)
    assert modes == list(get_args(SqsMode))
