"""Verdicts over REST: their effects, repeats, refusals and lost leases."""

from typing import Any

import pytest

from holdfast.core import bounds
from holdfast.core.backoff import Backoff
from holdfast.core.model import FailureKind, LeaseRequest, Queue, Reason, State
from holdfast.server.settings import ServerSettings
from tests.server.direct_server import direct_server
from tests.server.rest_client import RestClient, verdict
from tests.server.samples import job


async def test_complete_keeps_the_result_and_can_be_repeated(rest: RestClient, memory: str) -> None:
    await rest.enqueue({"id": "j"})
    [lease] = await rest.lease()
    done = verdict(lease, "complete", result={"ok": [True, "\x1b"]}, output="said\n")
    settled = [{"id": "j", "outcome": "settled", "verdict": "complete"}]
    assert await rest.settle(done) == settled
    assert await rest.settle(done) == settled
    job = await rest.get("/v1/jobs/j")
    assert (job["state"], job["result"]) == ("done", {"ok": [True, "\x1b"]})
    assert job["output"] == "said\n"


async def test_failed_is_decided_by_the_policy_of_the_job(rest: RestClient, memory: str) -> None:
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


async def test_a_retry_cannot_pass_max_attempts(rest: RestClient, memory: str) -> None:
    await rest.enqueue({"id": "j", "max_attempts": 3})
    words = []
    while leases := await rest.lease():
        [outcome] = await rest.settle(verdict(leases[0], "retry", delay=0))
        words.append(outcome["verdict"])
    assert words == ["retry", "retry", "bury"]
    job = await rest.job("j")
    assert (job.state, job.reason, job.attempt) == (State.DEAD, Reason.ATTEMPTS, 3)


async def test_a_retry_without_delay_uses_the_backoff(rest: RestClient, memory: str) -> None:
    backoff = Backoff(kind="linear", first_ms=5_000, jitter=0.0)
    await rest.store.declare(Queue(name="default", backoff=backoff))
    await rest.enqueue({"id": "queue"}, {"id": "own", "backoff": "constant(9s, jitter=0)"})
    for attempt in (1, 2):
        leases = await rest.lease(limit=2)
        await rest.settle(*(verdict(lease, "retry") for lease in leases))
        now = rest.clock.wall_ms()
        assert (await rest.job("queue")).due_at == now + attempt * 5_000
        assert (await rest.job("own")).due_at == now + 9_000
        rest.clock.advance(10_000)


@pytest.mark.parametrize("word", ["failed", "retry"])
async def test_a_crash_counts_with_any_verdict(rest: RestClient, memory: str, word: str) -> None:
    await rest.enqueue({"id": "j", "max_crashes": 2, "max_attempts": 9})
    words = []
    while leases := await rest.lease():
        [outcome] = await rest.settle(verdict(leases[0], word, error={"kind": "crash"}))
        words.append(outcome["verdict"])
        rest.clock.advance(600_000)
    assert words == ["retry", "bury"]
    job = await rest.job("j")
    assert (job.state, job.reason, job.crashes) == (State.DEAD, Reason.CRASHED, 2)


async def test_retry_bury_and_release(rest: RestClient, memory: str) -> None:
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


async def test_fields_of_a_follow_up_job_that_the_queue_sets_are_ignored(rest: RestClient) -> None:
    await rest.enqueue({"id": "a"})
    [lease] = await rest.lease()
    said = verdict(lease, "complete", then=[{"id": "next", "task": "t", "attempts": 7}])
    answer = await rest.post("/v1/settle", {"verdicts": [said]})
    assert answer["note"] == "ignored attempts: the queue sets such fields itself"
    assert (await rest.job("next")).attempt == 0


async def test_follow_up_jobs_share_the_transaction(rest: RestClient) -> None:
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


async def test_a_refused_follow_up_has_a_reason() -> None:
    async with direct_server(ServerSettings(auth=True)) as at:
        await at.engine().enqueue([job(id_) for id_ in "abcd"])
        leases = await at.engine().lease(LeaseRequest(queues=("default",), limit=4))
        then: list[dict[str, Any]] = [
            {"command": "echo"},
            {"task": "t", "queue": "nowhere"},
            {"task": "t", "after": ["nobody"]},
            {"task": "t"},
        ]
        said = [
            {"id": lease.id, "token": lease.token, "verdict": "complete", "then": [each]}
            for lease, each in zip(leases, then, strict=True)
        ]
        token = await at.token("consume")
        reply = await at.ask("POST", "/v1/settle", {"verdicts": said}, token=token)
        outcomes = reply.json["outcomes"]
    codes = [each.get("error", {}).get("code") for each in outcomes]
    assert codes == ["forbidden", "unknown_queue", "invalid_job", None]
    assert "run-commands" in outcomes[0]["error"]["message"]
    assert "nowhere" in outcomes[1]["error"]["message"]


async def test_any_error_text_is_accepted(rest: RestClient, memory: str) -> None:
    """Of a long one the head and the tail are kept, as by a worker."""
    await rest.enqueue({"id": "a"}, {"id": "b"}, {"id": "c"})
    a, b, c = await rest.lease(limit=3)
    long = "head" + "x" * 150_000 + "tail"
    body = {"renewals": [{"id": "a", "token": a["token"], "output": long}]}
    assert (await rest.post("/v1/renew", body))["renewals"][0]["outcome"] == "renewed"
    outcomes = await rest.settle(
        verdict(a, "failed", error={"message": long, "type": long, "trace": long}),
        verdict(b, "release", error=long),
        verdict(c, "bury", error=long, output=long),
    )
    assert [each["outcome"] for each in outcomes] == ["settled"] * 3
    failed, released, buried = [await rest.job(id_) for id_ in "abc"]
    failures = [each.failures[-1].failure for each in (failed, buried)]
    texts = [released.events[-1].text]
    for failure in failures:
        assert failure is not None
        texts.append(failure.message)
    assert failures[0] is not None
    texts += [failures[0].type, failures[0].trace]
    for text in texts:
        assert text.startswith("head")
        assert text.endswith("tail")
        assert len(text) <= bounds.ERROR_TEXT_MAX
    for output in (failed.output, buried.output):
        assert output is not None
        assert output.endswith(b"tail")
        assert len(output) <= bounds.OUTPUT_MAX


async def test_each_verdict_has_its_own_outcome(rest: RestClient, memory: str) -> None:
    await rest.enqueue(*({"id": id_} for id_ in "abcde"))
    a, b, c, d, e = await rest.lease(limit=5)
    outcomes = await rest.settle(
        verdict(a, "complete"),
        {**verdict(b, "complete"), "token": b["token"] + 1},
        verdict(c, "complete", result="x" * (bounds.RESULT_MAX + 1)),
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


async def test_an_expired_lease_is_lost(rest: RestClient, memory: str) -> None:
    await rest.enqueue({"id": "j"})
    [old] = await rest.lease(lease=1)
    rest.clock.advance(2_000)
    [lapsed] = (await rest.store.overdue(10)).leases
    assert lapsed.id == "j"
    # The job was not leased again, so the old lease can still be settled.
    await rest.settle(verdict(old, "release"))
    [new] = await rest.lease()
    assert [each["outcome"] for each in await rest.settle(verdict(old, "complete"))] == ["lost"]
    answer = await rest.post("/v1/renew", {"renewals": [{"id": "j", "token": old["token"]}]})
    assert answer == {"renewals": [{"id": "j", "outcome": "lost"}]}
    assert [each["outcome"] for each in await rest.settle(verdict(new, "complete"))] == ["settled"]


async def test_errors_are_hostile_text(rest: RestClient) -> None:
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
async def test_an_invalid_verdict_is_refused(rest: RestClient, said: dict[str, Any]) -> None:
    body = {"verdicts": [{"id": "j", "token": 1, **said}]}
    assert await rest.refused("POST", "/v1/settle", body) == (400, "invalid_request")
