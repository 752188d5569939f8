"""Jobs in hand over REST: lease, renew, settle."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import limits
from holdfast.core.backoff import Backoff
from holdfast.core.model import (
    FailureKind,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Queue,
    Reason,
    State,
)
from holdfast.core.verdict import Cancel
from holdfast.errors import EngineUnavailable
from holdfast.server import hand
from holdfast.server import leases as leases_
from holdfast.server.settings import ServerSettings
from tests.server.asking import Rest, serving, verdict


@pytest.fixture(params=["remembered", "forgotten"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the server still knows the leases it handed out: one that was restarted does not."""
    if request.param == "forgotten":
        monkeypatch.setattr(hand, "_KEPT_MAX", 0)
    return str(request.param)


async def test_a_lease_has_the_job_and_all_to_run_it(rest: Rest) -> None:
    await rest.store.declare(Queue(name="mail", timeout_ms=9_000, max_attempts=6))
    said = {"id": "j", "payload": {"a": [1]}, "labels": {"x": "1"}, "tenant": "acme"}
    await rest.enqueue(said, queue="mail")
    [lease] = await rest.lease("default", "mail", limit=10, worker="w1", lease="45s")
    job = lease.pop("job")
    assert set(lease) == {"token", "lease_ms"}
    assert lease["lease_ms"] == 45_000
    assert lease["token"] == (await rest.job("j")).token
    assert job["id"] == "j"
    assert (job["queue"], job["task"], job["payload"]) == ("mail", "t", {"a": [1]})
    assert (job["attempts"], job["max_attempts"], job["timeout_ms"]) == (1, 6, 9_000)
    assert (job["labels"], job["tenant"], job["worker"]) == ({"x": "1"}, "acme", "w1")
    assert await rest.lease("default", "mail") == []


async def test_only_the_tasks_or_the_ids_that_are_asked_for(rest: Rest) -> None:
    await rest.enqueue({"id": "a", "task": "one"}, {"id": "b", "task": "two"}, {"id": "c"})
    [lease] = await rest.lease(limit=5, tasks=["two"])
    assert lease["job"]["id"] == "b"
    answer = await rest.post("/v1/lease", {"ids": ["c", "nobody"], "limit": 5})
    assert [each["job"]["id"] for each in answer["leases"]] == ["c"]
    body = {"ids": ["c"], "queues": ["default"]}
    assert await rest.refused("POST", "/v1/lease", body) == (422, "usage")


async def test_bytes_that_are_no_text_come_as_base64(rest: Rest) -> None:
    raw = NewJob(id="j", task="t", payload=b"\xff\x00", content_type="application/octet-stream")
    false = NewJob(id="k", task="t", payload=b"{nonsense")
    await rest.store.enqueue([raw, false])
    for lease, payload in zip(await rest.lease(limit=2), (raw.payload, false.payload), strict=True):
        assert lease["job"]["payload"] is None
        assert base64.b64decode(lease["job"]["payload_base64"]) == payload


async def test_a_lease_that_waits_gets_the_next_job(rest: Rest) -> None:
    waiting = asyncio.create_task(rest.lease(wait=30))
    await rest.get("/healthz")
    [id_] = await rest.enqueue()
    [lease] = await waiting
    assert lease["job"]["id"] == id_


async def test_a_wait_ends_with_nothing_and_no_later_than_the_server_says(tmp_path: Path) -> None:
    settings = ServerSettings(wait_ms_max=50)
    async with serving("memory", tmp_path, settings) as rest:
        assert await rest.lease(wait="1h") == []
        [id_] = await rest.enqueue()
        assert (await rest.get(f"/v1/jobs/{id_}", wait=3600))["state"] == "waiting"


async def test_a_client_that_left_while_it_waited_gets_nothing(rest: Rest) -> None:
    leaving = asyncio.create_task(rest.lease(wait=30, worker="left"))
    await rest.get("/healthz")
    leaving.cancel()
    await asyncio.wait([leaving])
    [id_] = await rest.enqueue()
    [lease] = await rest.lease(wait=30, worker="stays")
    assert (lease["job"]["id"], lease["job"]["attempts"]) == (id_, 1)


async def test_what_was_leased_for_a_client_that_left_is_released(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves when the job is leased, and before it is told so."""
    queues = rest.store.queues
    leased, left = asyncio.Event(), asyncio.Event()

    async def slow(**more: Any) -> Any:
        leased.set()
        await left.wait()
        return await queues(**more)

    await rest.enqueue({"id": "j"})
    monkeypatch.setattr(rest.store, "queues", slow)
    leaving = asyncio.create_task(rest.lease(worker="left"))
    await leased.wait()
    assert (await rest.job("j")).state is State.LEASED
    leaving.cancel()
    await asyncio.wait([leaving])
    [lease] = await _next_lease(rest)
    assert (lease.job.attempt, lease.job.worker) == (1, "stays")
    left.set()


async def test_an_answer_that_nobody_is_there_for_is_taken_back(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves in the very moment in which the server has its answer."""
    take = rest.store.lease
    leaving: list[asyncio.Task[Any]] = []

    async def taken(request: LeaseRequest) -> list[Lease]:
        leases = await take(request)
        if request.worker == "left" and leases:
            leaving[0].cancel()
            await asyncio.wait(leaving)
            # The loop hears of the end of the connection only when it looks again.
            await asyncio.sleep(0)
        return leases

    monkeypatch.setattr(rest.store, "lease", taken)
    await rest.enqueue({"id": "j"})
    leaving.append(asyncio.create_task(rest.lease(worker="left")))
    await asyncio.wait(leaving)
    [lease] = await _next_lease(rest)
    assert (lease.job.attempt, lease.job.worker) == (1, "stays")


async def _next_lease(rest: Rest) -> list[Lease]:
    """From the store itself, which waits until somebody gives the job back."""
    request = LeaseRequest(queues=("default",), worker="stays", wait_ms=30_000)
    return await rest.store.lease(request)


async def test_complete_keeps_the_result_and_can_be_repeated(rest: Rest, memory: str) -> None:
    await rest.enqueue({"id": "j"})
    [lease] = await rest.lease()
    done = verdict(lease, "complete", result={"ok": [True, "\x1b"]}, output="said\n")
    settled = [{"id": "j", "outcome": "settled", "verdict": "complete"}]
    assert await rest.settle(done) == settled
    assert await rest.settle(done) == settled
    job = await rest.get("/v1/jobs/j")
    assert (job["state"], job["result"]) == ("done", {"ok": [True, "\x1b"]})
    assert job["output"] == "said\n"


async def test_failed_is_decided_by_the_policy_of_the_job(rest: Rest, memory: str) -> None:
    backoff = Backoff(kind="constant", first_ms=5_000, jitter=0.0)
    await rest.store.declare(Queue(name="default", max_attempts=9, backoff=backoff))
    await rest.enqueue({"id": "j", "max_attempts": 2})
    [lease] = await rest.lease()
    [outcome] = await rest.settle(verdict(lease, "failed", error="first"))
    assert outcome == {"id": "j", "outcome": "settled", "verdict": "retry"}
    job = await rest.job("j")
    assert (job.state, job.due_at) == (State.WAITING, rest.clock.wall_ms() + 5_000)
    assert await rest.lease() == []
    rest.clock.advance(5_000)
    [lease] = await rest.lease()
    failed = verdict(lease, "failed", error={"type": "Boom", "message": "last", "trace": "…"})
    for _ in range(2):
        [outcome] = await rest.settle(failed)
        assert outcome == {"id": "j", "outcome": "settled", "verdict": "bury"}
    shown = await rest.get("/v1/jobs/j")
    assert (shown["state"], shown["reason"], shown["error"]) == ("dead", "attempts", "last")
    assert [(each["type"], each["error"]) for each in shown["failures"]] == [
        ("", "first"),
        ("Boom", "last"),
    ]


async def test_a_retry_cannot_pass_max_attempts(rest: Rest, memory: str) -> None:
    await rest.enqueue({"id": "j", "max_attempts": 3})
    words = []
    while leases := await rest.lease():
        [outcome] = await rest.settle(verdict(leases[0], "retry"))
        words.append(outcome["verdict"])
    assert words == ["retry", "retry", "bury"]
    job = await rest.job("j")
    assert (job.state, job.reason, job.attempt) == (State.DEAD, Reason.ATTEMPTS, 3)


async def test_retry_bury_and_release_do_what_they_say(rest: Rest, memory: str) -> None:
    await rest.enqueue({"id": "a"}, {"id": "b"}, {"id": "c"})
    a, b, c = await rest.lease(limit=3)
    outcomes = await rest.settle(
        verdict(a, "retry", delay="2m", error="busy"),
        verdict(b, "bury", error="hopeless"),
        verdict(c, "release", delay=1, error="not now"),
    )
    assert [each["outcome"] for each in outcomes] == ["settled"] * 3
    now = rest.clock.wall_ms()
    retried, buried, released = [await rest.job(id_) for id_ in "abc"]
    assert (retried.attempt, retried.due_at) == (1, now + 120_000)
    assert (buried.state, buried.reason) == (State.DEAD, Reason.EXPLICIT)
    assert buried.failures[-1].failure is not None
    assert buried.failures[-1].failure.message == "hopeless"
    assert (released.attempt, released.due_at, released.events[-1].text) == (
        0,
        now + 1_000,
        "not now",
    )


async def test_follow_up_jobs_go_in_with_the_completion_or_not_at_all(rest: Rest) -> None:
    await rest.store.declare(Queue(name="mail"))
    await rest.enqueue({"id": "a"}, {"id": "b"}, {"id": "c"})
    a, b, c = await rest.lease(limit=3)
    then = {"id": "next", "task": "t", "queue": "mail", "payload": [1]}
    outcomes = await rest.settle(
        verdict(a, "complete", then=[then]),
        verdict(b, "complete", then=[{"task": "t", "queue": "nowhere"}]),
        verdict(c, "forward", queue="mail"),
    )
    assert [each["outcome"] for each in outcomes] == ["settled", "refused", "settled"]
    assert outcomes[1]["error"]["code"] == "unknown_queue"
    assert (await rest.job("next")).payload == b"[1]"
    assert (await rest.job("b")).state is State.LEASED
    assert (await rest.job("c")).queue == "mail"


async def test_each_verdict_has_its_own_outcome(rest: Rest, memory: str) -> None:
    await rest.enqueue(*({"id": id_} for id_ in "abcde"))
    a, b, c, d, e = await rest.lease(limit=5)
    outcomes = await rest.settle(
        verdict(a, "complete"),
        {**verdict(b, "complete"), "token": b["token"] + 1},
        verdict(c, "complete", result="x" * (limits.RESULT_MAX + 1)),
        {"id": "nobody", "token": 7, "verdict": "failed"},
        verdict(d, "complete", delay=5),
        verdict(d, "retry", delay="999999w"),
        verdict(e, "failed"),
    )
    assert [each["id"] for each in outcomes] == ["a", "b", "c", "nobody", "d", "d", "e"]
    assert [each["outcome"] for each in outcomes] == [
        "settled",
        "lost",
        "refused",
        "lost",
        "refused",
        "refused",
        "settled",
    ]
    assert {each["error"]["code"] for each in outcomes if "error" in each} == {"usage"}
    states = [(await rest.job(id_)).state for id_ in "abcde"]
    assert states == [State.DONE, State.LEASED, State.LEASED, State.LEASED, State.WAITING]


async def test_a_lease_that_lapsed_and_went_on_is_lost(rest: Rest, memory: str) -> None:
    await rest.enqueue({"id": "j"})
    [old] = await rest.lease(lease=1)
    rest.clock.advance(2_000)
    [lapsed] = (await rest.store.overdue(10)).leases
    assert lapsed.id == "j"
    # Nobody else has it yet, so it can still be ended.
    await rest.settle(verdict(old, "release"))
    [new] = await rest.lease()
    assert [each["outcome"] for each in await rest.settle(verdict(old, "complete"))] == ["lost"]
    answer = await rest.post("/v1/renew", {"renewals": [{"id": "j", "token": old["token"]}]})
    assert answer == {"renewals": [{"id": "j", "outcome": "lost"}]}
    assert [each["outcome"] for each in await rest.settle(verdict(new, "complete"))] == ["settled"]


async def test_errors_are_hostile_text(rest: Rest) -> None:
    await rest.enqueue({"id": "j", "max_attempts": 1})
    [lease] = await rest.lease()
    error = {
        "message": "\x00\x1b]0;x\x07\u202e",
        "type": "A\x00",
        "trace": "<script>",
        "kind": "crash",
    }
    await rest.settle(verdict(lease, "failed", error=error))
    job = await rest.job("j")
    assert job.crashes == 1
    failure = job.failures[-1].failure
    assert failure is not None
    assert failure.kind is FailureKind.CRASH
    assert (failure.message, failure.type) == ("\ufffd\x1b]0;x\x07\u202e", "A\ufffd")
    assert (await rest.get("/v1/jobs/j"))["error"] == failure.message


@pytest.mark.parametrize(
    "said",
    [
        {"verdict": "overdue"},
        {"verdict": "failed", "error": {"kind": "overdue"}},
        {"verdict": "failed", "error": {"kind": "expired"}},
        {"verdict": "complete", "token": -1},
        {"verdict": "complete", "token": "1"},
        {"verdict": "complete", "token": 2**63},
        {"verdict": "complete", "id": "no spaces"},
        {"verdict": "release", "unstarted": True},
    ],
)
async def test_a_verdict_that_does_not_fit_the_description_is_refused(
    rest: Rest, said: dict[str, Any]
) -> None:
    body = {"verdicts": [{"id": "j", "token": 1, **said}]}
    assert await rest.refused("POST", "/v1/settle", body) == (400, "invalid_request")


async def test_renewing_keeps_a_job_and_what_its_run_leaves(rest: Rest, memory: str) -> None:
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
    await rest.settle(verdict(leases[0], "retry"))
    [again] = await rest.lease()
    assert (again["job"]["attempts"], again["job"]["checkpoint"]) == (2, {"at": 3})


async def test_a_renewal_hears_of_a_cancel_and_a_release_ends_it(rest: Rest, memory: str) -> None:
    await rest.enqueue({"id": "j"})
    [lease] = await rest.lease()
    await rest.store.amend(JobFilter(ids=("j",)), Cancel(by="me"), limit=1)
    body = {"renewals": [{"id": "j", "token": lease["token"]}]}
    [renewed] = (await rest.post("/v1/renew", body))["renewals"]
    assert renewed["cancel_requested"] is True
    await rest.settle(verdict(lease, "release"))
    assert (await rest.job("j")).state is State.CANCELLED


@pytest.mark.parametrize("word", ["failed", "retry"])
async def test_who_asked_for_the_end_of_a_last_attempt_gets_no_dead_letter(
    rest: Rest, memory: str, word: str
) -> None:
    await rest.enqueue({"id": "j", "max_attempts": 1})
    [lease] = await rest.lease()
    await rest.store.amend(JobFilter(ids=("j",)), Cancel(by="me"), limit=1)
    await rest.settle(verdict(lease, word))
    assert (await rest.job("j")).state is State.CANCELLED


async def test_a_renewal_that_is_refused_harms_no_other(rest: Rest) -> None:
    await rest.enqueue({"id": "a"}, {"id": "b"}, {"id": "c"})
    a, b, c = await rest.lease(limit=3)
    body = {
        "renewals": [
            {"id": "a", "token": a["token"], "checkpoint": "x" * limits.CHECKPOINT_MAX},
            {"id": "b", "token": b["token"]},
            {"id": "c", "token": c["token"], "lease": 0},
        ]
    }
    answer = (await rest.post("/v1/renew", body))["renewals"]
    assert [each["outcome"] for each in answer] == ["refused", "renewed", "refused"]
    assert [each.get("error", {}).get("code") for each in answer] == ["usage", None, "usage"]


async def test_no_answer_has_more_than_can_be_told(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_, "_PORTION", 5)
    monkeypatch.setattr(leases_, "_BYTES_MAX", 1_000)
    await rest.enqueue(*({"payload": "x" * 100} for _ in range(23)))
    assert [len(await rest.lease(limit=100)) for _ in range(3)] == [9, 9, 5]


async def test_large_jobs_are_taken_a_few_at_a_time(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = rest.store.lease
    asked: list[int] = []

    async def noted(request: LeaseRequest) -> list[Lease]:
        asked.append(request.limit)
        return await take(request)

    monkeypatch.setattr(rest.store, "lease", noted)
    await rest.enqueue(*({"payload": "x" * 1_000_000} for _ in range(25)))
    assert len(await rest.lease(limit=1_000)) == 10
    assert asked == [10]


async def test_leases_in_hand_are_told_when_the_next_cannot_be_had(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_, "_PORTION", 5)
    take = rest.store.lease
    calls: list[int] = []

    async def broken(request: LeaseRequest) -> list[Lease]:
        calls.append(request.limit)
        if len(calls) == 2:
            raise EngineUnavailable("not now")
        return await take(request)

    monkeypatch.setattr(rest.store, "lease", broken)
    await rest.enqueue(*({} for _ in range(8)))
    assert len(await rest.lease(limit=8)) == 5
    assert calls == [5, 3]


async def test_a_thousand_leases_go_in_one_request_each_way(rest: Rest) -> None:
    await rest.enqueue(*({"id": f"j{at}"} for at in range(1_000)))
    leases = await rest.lease(limit=1_000)
    assert len(leases) == 1_000
    outcomes = await rest.settle(*(verdict(lease, "complete", result=1) for lease in leases))
    assert {each["outcome"] for each in outcomes} == {"settled"}
