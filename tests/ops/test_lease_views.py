"""Views of leases, as workers over HTTP get them."""

import base64
import json

import msgspec
import pytest

from holdfast.core.model import Job, Lease, Overrides, Queue
from holdfast.ops.jobs.views import lease_view


def lease_json(job: Job, queue: Queue | None = None) -> dict[str, object]:
    lease = Lease(job=job, token=7, lease_ms=1_000)
    view: dict[str, object] = json.loads(msgspec.json.encode(lease_view(lease, queue)))
    assert (view["token"], view["lease_ms"]) == (7, 1_000)
    inner = view["job"]
    assert isinstance(inner, dict)
    return inner


@pytest.mark.parametrize(
    ("payload", "content_type", "value"),
    [
        (b'{"a":1}', "application/json", {"a": 1}),
        ("ä".encode(), "text/plain", "ä"),
        (b"", "text/plain", ""),
    ],
)
def test_a_payload_is_its_json_value_or_text(
    payload: bytes, content_type: str, value: object
) -> None:
    view = lease_json(Job(id="j", task="t", queue="q", payload=payload, content_type=content_type))
    assert view["payload"] == value
    assert "payload_base64" not in view


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
@pytest.mark.parametrize("payload", [b"\xff", b'"\xff"', b"[" * 5_000])
def test_other_bytes_are_base64(payload: bytes, content_type: str) -> None:
    view = lease_json(Job(id="j", task="t", queue="q", payload=payload, content_type=content_type))
    if "payload_base64" in view:
        assert view["payload"] is None
        assert base64.b64decode(str(view["payload_base64"])) == payload
    else:
        assert str(view["payload"]).encode() == payload


def test_bounds_come_from_the_job_or_its_queue() -> None:
    queue = Queue(name="q", max_attempts=9, timeout_ms=5)
    own = Job(id="j", task="t", queue="q", overrides=Overrides(max_attempts=2, timeout_ms=3))
    plain = Job(id="j", task="t", queue="q", checkpoint=b'{"at":1}')
    assert [lease_json(own, queue)[name] for name in ("max_attempts", "timeout_ms")] == [2, 3]
    view = lease_json(plain, queue)
    assert (view["max_attempts"], view["timeout_ms"]) == (9, 5)
    assert view["checkpoint"] == {"at": 1}
    assert lease_json(plain)["max_attempts"] == Queue(name="q").max_attempts
