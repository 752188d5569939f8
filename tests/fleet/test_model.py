"""Messages: what is accepted, and the error that names the field and the value of what is not."""

from typing import Any

import pytest

from holdfast_fleet.model import (
    InvalidMessage,
    instance_of,
    iso,
    parse_housekeeping,
    parse_termination,
    parse_time,
)
from tests.fleet.samples import housekeeping, termination


def test_the_message_of_the_document() -> None:
    found = parse_termination(termination(error="boom", novel="ignored"))
    assert (found.record_status, found.error) == ("completed", "boom")
    assert found.parameter == "/runs-fleet/runners/i-0123456789abcdef0/config"
    assert iso(found.completed_at) == "2025-11-25T10:02:03Z"


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("2025-11-25T12:02:03.999+02:00", "2025-11-25T10:02:03Z"),
        ("2025-11-25T10:02:03.123456789Z", "2025-11-25T10:02:03Z"),
    ],
)
def test_times_are_stored_in_one_form(text: str, stored: str) -> None:
    assert iso(parse_termination(termination(completed_at=text)).completed_at) == stored


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instance_id", "i-../../secret"),
        ("instance_id", "i-0123456789abcdef0\n"),
        ("instance_id", None),
        ("job_id", ""),
        ("job_id", 67890),
        ("job_id", "a b"),
        ("job_id", "x" * 257),
        ("status", "completed"),
        ("exit_code", "0"),
        ("exit_code", 1.5),
        ("exit_code", 2**40),
        ("duration_seconds", -1),
        ("duration_seconds", 1e300),
        ("started_at", "2025-11-25"),
        ("started_at", "2025-11-25T10:00:00"),
        ("completed_at", "0001-01-01T00:00:00+05:00"),
        ("completed_at", 1764064923),
        ("error", {"text": "boom"}),
    ],
)
def test_a_wrong_field_is_named_with_its_value(field: str, value: Any) -> None:
    with pytest.raises(InvalidMessage) as caught:
        parse_termination(termination(**{field: value}))
    assert str(caught.value).startswith(f"{field} {ascii(value)[:20]}")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("field", [name for name in termination() if name != "error"])
def test_a_missing_field_is_named(field: str) -> None:
    fields = termination()
    del fields[field]
    with pytest.raises(InvalidMessage, match=f"missing required field {field}"):
        parse_termination(fields)


def test_housekeeping() -> None:
    assert parse_housekeeping(housekeeping("stale_ssm")).params == {}
    assert parse_housekeeping(housekeeping("pool_audit", params={"hours": 12})).hours == 12
    for wrong in (0, -1, "24", True, 10**9):
        with pytest.raises(InvalidMessage, match=r"params\.hours"):
            parse_housekeeping(housekeeping("pool_audit", params={"hours": wrong}))
    with pytest.raises(InvalidMessage, match="task_type 'rm -rf'"):
        parse_housekeeping(housekeeping("rm -rf"))
    with pytest.raises(InvalidMessage, match="params"):
        parse_housekeeping(housekeeping("old_jobs", params=[]))


@pytest.mark.parametrize(
    ("name", "instance"),
    [
        ("/runs-fleet/runners/i-0123456789abcdef0/config", "i-0123456789abcdef0"),
        ("/runs-fleet/runners/i-0123456789abcdef0/config\n", None),
        ("/runs-fleet/runners/i-0123456789abcdef0", None),
        ("/other/runners/i-0123456789abcdef0/config", None),
    ],
)
def test_the_instance_of_a_parameter(name: str, instance: str | None) -> None:
    assert instance_of(name) == instance


def test_a_time_without_a_zone_is_unknown() -> None:
    assert parse_time("1970-01-01T01:00:00+01:00") == 0
    assert [parse_time(text) for text in (None, "", "1970-01-01T00:00:00", "x")] == [None] * 4
