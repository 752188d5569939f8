"""Gates: the checks of a gate, and the id of the job for a message."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import bounds
from holdfast.errors import InvalidJob, UsageError
from holdfast.ops.gates import (
    Gate,
    check_chosen_task,
    check_gate,
    may_run_commands,
    message_job_id,
)

INLET: dict[str, Any] = {
    "name": "in",
    "direction": "inlet",
    "broker": "b",
    "queue": "q",
    "source": "s",
    "task": "t",
}
OUTLET: dict[str, Any] = {
    "name": "out",
    "direction": "outlet",
    "broker": "b",
    "queue": "q",
    "exchange": "e",
}


@pytest.mark.parametrize(
    ("base", "wrong", "match"),
    [
        (INLET, {"name": ""}, "gate name"),
        (INLET, {"name": "a" * 41}, "gate name"),
        (INLET, {"name": "a:b"}, "gate name"),
        (INLET, {"broker": "amqp://user:secret@host"}, "broker name"),
        (INLET, {"queue": "a b"}, "queue name"),
        (INLET, {"source": ""}, "no source"),
        (INLET, {"source": "x" * 256}, "over 255 bytes"),
        (INLET, {"source": "a\0"}, "NUL"),
        (INLET, {"task": ""}, "no task"),
        (INLET, {"task": "a b"}, "task 'a b' is not valid"),
        (INLET, {"task": "{body}"}, "unknown placeholder {body}"),
        (INLET, {"tenant": "{label.x}"}, "unknown placeholder"),
        (INLET, {"key": "{"}, "malformed"),
        (INLET, {"exchange": "e"}, "it has no exchange"),
        (INLET, {"content_type": "ü"}, "content_type"),
        (OUTLET, {"exchange": ""}, "neither an exchange nor"),
        (OUTLET, {"routing_key": "{routing_key}"}, "unknown placeholder"),
        (OUTLET, {"routing_key": "{payload}"}, "unknown placeholder"),
        (OUTLET, {"task": "t"}, "it has no task"),
    ],
)
def test_a_wrong_gate_is_refused(base: dict[str, Any], wrong: dict[str, Any], match: str) -> None:
    check_gate(Gate(**base))
    with pytest.raises(UsageError, match=match):
        check_gate(Gate(**{**base, **wrong}))


@settings(max_examples=50)
@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_ids_of_messages_are_ids_of_jobs_and_stay_apart(one: str, two: str) -> None:
    ids = [message_job_id("g" * 40, each) for each in (one, two)]
    assert all(bounds.JOB_ID.match(f"{id_}.part12345") for id_ in ids)
    assert (ids[0] == ids[1]) == (one == two)


def test_a_plain_id_cannot_pose_as_a_hash() -> None:
    hashed = message_job_id("g", "a b")
    assert message_job_id("g", hashed.removeprefix("gate:g:")) != hashed
    assert message_job_id("g", "m1") == "gate:g:m1"


def test_no_message_takes_the_id_of_a_part_of_another() -> None:
    first = message_job_id("g", "m1")
    assert message_job_id("g", "m1.part2") != f"{first}.part2"


@pytest.mark.parametrize(
    ("task", "chosen", "runs"),
    [("command", False, True), ("webhook", False, True), ("{header.x}", True, False)],
)
def test_a_message_cannot_choose_to_run_a_command(task: str, chosen: bool, runs: bool) -> None:
    gate = Gate(**{**INLET, "task": task})
    assert may_run_commands(gate) is runs
    if chosen:
        with pytest.raises(InvalidJob, match="cannot choose"):
            check_chosen_task(gate, "command")
    else:
        check_chosen_task(gate, "command")
