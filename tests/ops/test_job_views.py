"""Views of jobs: every field is right, and hostile text stays a value."""

import json

import msgspec
import pytest

from holdfast.core.explain import Cause
from holdfast.core.limits import Slot
from holdfast.core.model import (
    Event,
    EventKind,
    Failure,
    FailureKind,
    Job,
    Overrides,
    Queue,
    Reason,
    Reroute,
    State,
    Waits,
)
from holdfast.ops.jobs.views import (
    JobView,
    event_view,
    explanation,
    job_view,
    output_view,
    timeline_view,
    waits_view,
)
from holdfast.ops.views import plain, raw_of

FAILED = Event(
    at=2_000,
    kind=EventKind.BURIED,
    attempt=1,
    by="w",
    text="attempts",
    failure=Failure(kind=FailureKind.CRASH, type="T", message="m", exit_code=3),
)


def dead() -> Job:
    return Job(
        id="j",
        task="t",
        queue="q",
        payload=b'{"a":[1,2.5]}',
        state=State.DEAD,
        reason=Reason.ATTEMPTS,
        attempt=1,
        created_at=0,
        leased_at=1_000,
        finished_at=2_500,
        output=b"\xff\x1b",
        overrides=Overrides(max_attempts=1, reroute=Reroute(labels={"z": "eu"})),
        events=(FAILED,),
    )


def test_a_view_is_the_same_as_a_dict_and_as_json() -> None:
    view = job_view(dead(), Queue(name="q"))
    fields = plain(view)
    # Only a payload that is not text is also shown in base64.
    assert set(JobView.__struct_fields__) - set(fields) == {"payload_base64"}
    assert json.loads(msgspec.json.encode(view)) == json.loads(json.dumps(fields))
    assert fields["payload"] == {"a": [1, 2.5]}
    assert (fields["state"], fields["reason"], fields["error"]) == ("dead", "attempts", "m")
    assert (fields["exit_code"], fields["duration_ms"]) == (3, 1_500)
    assert fields["output"] == "\ufffd\x1b"
    assert fields["max_attempts"] == 1
    assert fields["reroute"] == {"labels": {"z": "eu"}}
    assert (fields["created_at"], fields["expires_at"]) == ("1970-01-01T00:00:00Z", None)
    assert [each["error"] for each in fields["failures"]] == ["m"]


@pytest.mark.parametrize(
    ("payload", "content_type"),
    [
        (b'{"a": [1, "\\u0000", 1e5]}', "application/json"),
        (b"{nonsense", "application/json"),
        (b'"\xff"', "application/json"),
        (b"[" * 5_000 + b"]" * 5_000, "application/json"),
        (b"", "application/json"),
        (b"text", "text/plain"),
        (b"\xff\xfe", "application/octet-stream"),
    ],
)
def test_raw_json_has_the_same_value(payload: bytes, content_type: str) -> None:
    job = Job(id="j", task="t", queue="q", payload=payload, content_type=content_type)
    made = job_view(job, None)
    raw = job_view(job, None, value=raw_of)
    assert json.loads(msgspec.json.encode(raw)) == plain(made) | {"after": []}


def test_a_command_that_is_done_has_the_exit_code_of_its_result() -> None:
    done = Job(id="j", task="command", queue="q", state=State.DONE, result=b'{"exit_code": 0}')
    assert job_view(done, None).exit_code == 0
    assert job_view(msgspec.structs.replace(done, result=b"[]"), None).exit_code is None
    assert job_view(msgspec.structs.replace(done, task="t"), None).exit_code is None


def test_a_done_job_shows_earlier_failures_only_in_failures() -> None:
    done = msgspec.structs.replace(dead(), state=State.DONE, reason=None)
    view = job_view(done, None)
    assert (view.error, len(view.failures)) == (None, 1)


def test_an_event_without_a_failure_omits_its_fields() -> None:
    view = plain(event_view(Event(at=0, kind=EventKind.MOVED, by="me", text="x")))
    assert tuple(view) == ("at", "event", "attempt", "worker", "text")
    assert tuple(plain(event_view(FAILED)))[5:] == (
        "kind",
        "type",
        "error",
        "exit_code",
        "signal",
        "trace",
    )
    assert [each.event for each in timeline_view(dead())] == ["enqueued", "leased", "buried"]


def test_only_what_holds_a_job_back_is_shown() -> None:
    free = Slot(limit="l", key="", concurrency=2, rate=None, used=1)
    full = Slot(limit="m", key="k", concurrency=1, rate=None, used=1, holders=("h",))
    assert waits_view(None) is None
    nothing = Waits(parents=(), parent_count=0, group_head=None, slots=(free,))
    assert waits_view(nothing) is None
    view = waits_view(msgspec.structs.replace(nothing, slots=(free, full)))
    assert view is not None
    assert [each.limit for each in view.limits] == ["m"]


def test_reasons_have_readable_instants() -> None:
    told = plain(
        explanation(dead(), [Cause(code="c", text="t", at=1_500), Cause(code="d", text="u")])
    )
    assert [each["at"] for each in told["reasons"]] == ["1970-01-01T00:00:01.500Z", None]
    assert plain(output_view(dead())) == {
        "id": "j",
        "state": "dead",
        "attempt": 1,
        "output": "\ufffd\x1b",
    }
