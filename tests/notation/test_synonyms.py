"""Names of other queues lead to the name here, wherever an option is written."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.app.application import Holdfast
from holdfast.core.model import Queue
from holdfast.errors import InvalidJob, InvalidQueue, UsageError
from holdfast.notation.job import FIELDS
from holdfast.notation.job_lines import read_line
from holdfast.notation.options import QueueOptions, changed_queue, new_job
from holdfast.notation.synonyms import READ_ONLY, SYNONYMS, remedy, suggestion

JOB = {
    "depends_on": "did you mean after?",
    "dead_deadline": "did you mean expires?",
    "defer": "did you mean delay?",
    "visibility_timeout": "did you mean lease?",
    "rate_limit": 'a task has a rate, such as rate="100/m", and a queue has limits',
    "prority": "did you mean priority?",
    "task_id": "did you mean id?",
    "unique": "did you mean key?",
    "time_limit": "did you mean timeout?",
    "result_ttl": 'a queue has a retention: see "holdfast queue update"',
    "bind": "a handler gets the running job by a parameter ctx: Context",
}
ATTEMPTS = "did you mean max_attempts, which counts the first attempt too?"


@pytest.mark.parametrize("name", JOB)
def test_options_of_a_job(name: str) -> None:
    given: Any = {name: 1}
    with pytest.raises(InvalidJob) as caught:
        new_job("t", None, given)
    assert str(caught.value).startswith(f"a job has no {name}: {JOB[name]}")


@pytest.mark.parametrize("name", JOB)
def test_fields_of_a_line(name: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        read_line(json.dumps({"task": "t", name: 1}))
    assert str(caught.value).startswith(f"unknown field {name}: {JOB[name]}")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("visibility_timeout", "did you mean lease?"),
        ("max_retries", ATTEMPTS),
        ("rate_limit", "did you mean limits?"),
        ("result_ttl", "did you mean retention?"),
        ("leese", "did you mean lease?"),
    ],
)
def test_settings_of_a_queue(name: str, says: str) -> None:
    given: Any = {name: 1}
    with pytest.raises(InvalidQueue) as caught:
        changed_queue(Queue(name="q"), given)
    assert str(caught.value) == f"a queue has no {name}: {says}"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("max_retries", ATTEMPTS),
        ("rate_limit", "did you mean rate?"),
        ("autoretry_for", "did you mean retry_on?"),
        ("retry_delay", "did you mean backoff?"),
        ("cron", 'only schedules have a rule: @app.schedule(cron=…), or "holdfast schedule add"'),
        ("acks_late", "leave it out, because a job always ends after its handler"),
        ("visibility_timeout", "did you mean lease?"),
    ],
)
def test_options_of_a_task(name: str, says: str) -> None:
    given: Any = {name: 3}
    with pytest.raises(UsageError) as caught:
        Holdfast("memory:").task(name="t", **given)(lambda: None)
    assert str(caught.value) == f"a task has no {name}: {says}"


def test_several_unknown_names_are_all_named() -> None:
    given: Any = {"defer": 1, "colour": "red"}
    with pytest.raises(InvalidJob) as caught:
        new_job("t", None, given)
    text = str(caught.value)
    assert text.startswith("a job has no colour, defer; it has after, ")
    assert text.endswith("; defer: did you mean delay?")


def test_a_synonym_is_no_name_of_ours() -> None:
    """Or it would never be looked up."""
    assert not set(SYNONYMS) & {*QueueOptions.__annotations__, *FIELDS} - {"max_retries"}
    assert not set(READ_ONLY) & set(FIELDS)


def test_nothing_is_suggested_for_a_name_that_nothing_resembles() -> None:
    assert suggestion("colour", FIELDS) is None
    assert suggestion("items", FIELDS) is None, "an unfit synonym is not compared by its letters"
    assert remedy("colour", FIELDS) == ""


def test_fields_that_the_queue_sets_are_left_out_of_a_pasted_job() -> None:
    pasted = {"id": "j", "command": "echo ü", "state": "pending", "attempts": 2, "max_retries": 3}
    pasted |= {"created_at": "2025-11-04T10:30:00Z", "updated_at": None}
    ignored: set[str] = set()
    line = read_line(json.dumps(pasted), ignored)
    assert (line.id, line.command, line.max_retries) == ("j", "echo ü", 3)
    assert ignored == set(READ_ONLY)
    payload = read_line(b'{"task": "t", "state": "x", "payload": {"a" : 1.0}}', ignored).payload
    assert isinstance(payload, msgspec.Raw)
    assert bytes(payload) == b'{"a" : 1.0}', "byte for byte"
    with pytest.raises(InvalidJob, match="unknown field colour"):
        read_line('{"task": "t", "state": "x", "colour": 1}', ignored)
    with pytest.raises(InvalidJob, match="unknown field state"):
        read_line('{"task": "t", "state": "x"}')
