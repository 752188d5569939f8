"""Renewals over REST: deadlines, notes and cancel requests."""

import pytest

from holdfast.core import bounds
from holdfast.core.model import JobFilter, Queue, State
from holdfast.core.verdict import Cancel
from tests.server.rest_client import RestClient, verdict


async def test_renewing_extends_the_lease_and_stores_notes(rest: RestClient, memory: str) -> None:
    await rest.store.declare(Queue(name="default", lease_ms=20_000))
    await rest.enqueue({"id": "j"}, {"id": "own", "lease": "40s"})
    leases = await rest.lease(limit=2)
    rest.clock.advance(15_000)
    notes = {"progress": 0.5, "checkpoint": {"at": 3}, "output": "half\n"}
    answer = await rest.post(
        "/v1/renew",
        {
            "renewals": [
                {"id": "j", "token": leases[0]["token"], **notes},
                {"id": "own", "token": leases[1]["token"]},
                {"id": "own", "token": leases[1]["token"], "lease": "5m"},
            ]
        },
    )
    assert [each["outcome"] for each in answer["renewals"]] == ["renewed"] * 3
    assert [each["lease_ms"] for each in answer["renewals"]] == [20_000, 40_000, 300_000]
    job = await rest.job("j")
    assert job.deadline_at == rest.clock.wall_ms() + 20_000
    assert (job.progress, job.output) == (0.5, b"half\n")
    assert (await rest.job("own")).deadline_at == rest.clock.wall_ms() + 300_000
    await rest.settle(verdict(leases[0], "retry", delay=0))
    [again] = await rest.lease()
    assert (again["job"]["attempts"], again["job"]["checkpoint"]) == (2, {"at": 3})


async def test_a_renewal_reports_a_cancel_request_and_a_release_cancels(
    rest: RestClient, memory: str
) -> None:
    await rest.enqueue({"id": "j"})
    [lease] = await rest.lease()
    await rest.store.amend(JobFilter(ids=("j",)), Cancel(by="me"), limit=1)
    body = {"renewals": [{"id": "j", "token": lease["token"]}]}
    [renewed] = (await rest.post("/v1/renew", body))["renewals"]
    assert renewed["cancel_requested"] is True
    await rest.settle(verdict(lease, "release"))
    assert (await rest.job("j")).state is State.CANCELLED


@pytest.mark.parametrize("word", ["failed", "retry"])
@pytest.mark.parametrize("bound", ["max_attempts", "max_crashes"])
async def test_a_cancelled_last_attempt_becomes_no_dead_letter(
    rest: RestClient, memory: str, word: str, bound: str
) -> None:
    await rest.enqueue({"id": "j", bound: 1})
    [lease] = await rest.lease()
    await rest.store.amend(JobFilter(ids=("j",)), Cancel(by="me"), limit=1)
    await rest.settle(verdict(lease, word, error={"kind": "crash"}))
    assert (await rest.job("j")).state is State.CANCELLED


async def test_a_refused_renewal_does_not_affect_the_others(rest: RestClient) -> None:
    await rest.enqueue({"id": "a"}, {"id": "b"}, {"id": "c"})
    a, b, c = await rest.lease(limit=3)
    body = {
        "renewals": [
            {"id": "a", "token": a["token"], "checkpoint": "x" * bounds.CHECKPOINT_MAX},
            {"id": "b", "token": b["token"]},
            {"id": "c", "token": c["token"], "lease": 0},
        ]
    }
    answer = (await rest.post("/v1/renew", body))["renewals"]
    assert [each["outcome"] for each in answer] == ["refused", "renewed", "refused"]
    assert [each.get("error", {}).get("code") for each in answer] == ["usage", None, "usage"]
