"""Enqueue over REST."""

import asyncio
from typing import Any

import pytest

from holdfast.core import bounds
from holdfast.core.backoff import Backoff
from holdfast.core.model import JobFilter, Overrides, Queue
from holdfast.core.workers import TaskRecord
from holdfast.ops import settings
from tests.server.rest_client import RestClient, verdict

PATH = "/v1/queues/default/jobs"


async def count(rest: RestClient) -> int:
    return len((await rest.store.find(JobFilter(), limit=bounds.PAGE_MAX)).jobs)


async def test_the_answer_has_an_id_for_each_job(rest: RestClient) -> None:
    body = {"jobs": [{"task": "mail:send", "payload": {"to": "a@b.c"}}, {"id": "own", "task": "t"}]}
    answer = await rest.post(PATH, body, status=201)
    made = answer["jobs"][0]["id"]
    assert answer == {"jobs": [{"id": made, "duplicate": False}, {"id": "own", "duplicate": False}]}
    job = await rest.job(made)
    assert (job.task, job.queue, job.payload) == ("mail:send", "default", b'{"to":"a@b.c"}')
    assert (await rest.job("own")).payload == b"null"


async def test_a_known_id_or_key_adds_nothing(rest: RestClient) -> None:
    first = {"id": "a", "task": "t", "key": "k"}
    await rest.post(PATH, {"jobs": [first]}, status=201)
    again = await rest.post(PATH, {"jobs": [first]}, status=201)
    other = await rest.post(PATH, {"jobs": [{**first, "id": "b"}]}, status=201)
    assert again == other == {"jobs": [{"id": "a", "duplicate": True}]}
    assert await count(rest) == 1


async def test_every_field_of_a_job_is_stored(rest: RestClient) -> None:
    await rest.enqueue({"id": "parent"})
    said = {
        "id": "j", "task": "t", "payload": [1], "priority": 7, "delay": "2m", "expires": 3600,
        "key": "k", "key_window": "1h", "key_policy": "replace", "tenant": "acme", "group": "g",
        "key_hold": "window",
        "labels": {"a": "1"}, "headers": {"h": "ä"}, "lease": "45s", "timeout": 1.5,
        "max_retries": 2, "max_crashes": 5, "backoff": "constant(3s)", "after": ["parent"],
        "after_on": "either", "parent_death": "hold",
    }  # fmt: skip
    await rest.enqueue(said)
    job = await rest.job("j")
    now = rest.clock.wall_ms()
    assert (job.priority, job.due_at, job.expires_at) == (7, now + 120_000, now + 3_600_000)
    assert (job.key, job.tenant, job.group) == ("k", "acme", "g")
    assert (job.labels, job.headers) == ({"a": "1"}, {"h": "ä"})
    assert (job.after, job.after_on, job.parent_death) == (("parent",), "either", "hold")
    assert job.overrides == Overrides(
        lease_ms=45_000,
        timeout_ms=1_500,
        max_attempts=3,
        max_crashes=5,
        backoff=Backoff(kind="constant", first_ms=3_000),
    )


async def test_null_equals_a_missing_field(rest: RestClient) -> None:
    said = dict.fromkeys(("command", "webhook", "delay", "key", "labels", "backoff", "after"))
    [id_] = await rest.enqueue({**said, "payload": None})
    job = await rest.job(id_)
    assert (job.payload, job.key, job.labels) == (b"null", None, {})


PAYLOADS: tuple[Any, ...] = (
    None,
    "",
    "\x00\x1b[2J\u202e</script>\U0001f600",
    {"": {"a": [[]]}, "__proto__": 1},
    123456789012345678901234567890,
    -0.5e-300,
    [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]],
)


async def test_payloads_are_returned_unchanged(rest: RestClient) -> None:
    ids = await rest.enqueue(*({"payload": payload} for payload in PAYLOADS))
    leases = await rest.lease(limit=100)
    assert [lease["job"]["payload"] for lease in leases] == list(PAYLOADS)
    for id_, payload in zip(ids, PAYLOADS, strict=True):
        assert (await rest.get(f"/v1/jobs/{id_}"))["payload"] == payload


async def test_a_refused_job_does_not_affect_the_others(rest: RestClient) -> None:
    jobs: list[Any] = [
        {"id": "good", "task": "t"},
        {"id": "both", "task": "t", "delay": 1, "run_at": "2030-01-01T00:00:00Z"},
        {"id": "orphan", "task": "t", "after": ["nobody"]},
        {"id": "large", "task": "t", "payload": "x" * bounds.QUEUE_PAYLOAD_MAX},
        {"id": "nothing"},
        {"id": "fine", "task": "t"},
    ]
    answer = (await rest.post(PATH, {"jobs": jobs}, status=201))["jobs"]
    assert [each["id"] for each in answer] == [job["id"] for job in jobs]
    assert [each.get("error", {}).get("code") for each in answer] == [
        None,
        "invalid_job",
        "unknown_parent",
        "payload_too_large",
        "invalid_job",
        None,
    ]
    assert not any(each["duplicate"] for each in answer)
    assert await count(rest) == 2


@pytest.mark.parametrize(
    ("queue", "job", "refusal"),
    [
        ("nowhere", {}, (404, "unknown_queue")),
        ("full", {}, (429, "queue_full")),
        ("shut", {}, (409, "not_accepting")),
        ("default", {"payload": "x" * bounds.QUEUE_PAYLOAD_MAX}, (413, "payload_too_large")),
        ("default", {"command": "ls"}, (422, "invalid_job")),
        ("default", {"max_attempts": 1, "max_retries": 1}, (422, "invalid_job")),
        ("default", {"after": ["nobody"]}, (422, "unknown_parent")),
    ],
)
async def test_when_all_are_refused_the_answer_is_that_error(
    rest: RestClient, queue: str, job: dict[str, Any], refusal: tuple[int, str]
) -> None:
    await rest.store.declare(Queue(name="full", max_depth=1))
    await rest.enqueue(queue="full")
    await rest.store.declare(Queue(name="shut", accepting=False))
    body = {"jobs": [{"task": "t", **job}]}
    assert await rest.refused("POST", f"/v1/queues/{queue}/jobs", body) == refusal
    assert await count(rest) == 1


async def test_the_error_of_several_jobs_lists_each(rest: RestClient) -> None:
    body = {"jobs": [{"id": "a"}, {"id": "b", "task": "t", "after": ["nobody"]}]}
    answer = await rest.client.post(PATH, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "invalid_job")
    assert [(each["id"], each["code"]) for each in error["detail"]["jobs"]] == [
        ("a", "invalid_job"),
        ("b", "unknown_parent"),
    ]


BAD_BODIES: tuple[Any, ...] = (
    {},
    {"jobs": []},
    {"jobs": [{"task": "t"}] * 1_001},
    {"jobs": {"task": "t"}},
    {"jobs": [{"task": "t", "colour": "red"}]},
    {"jobs": [{"task": "t", "queue": "mail"}]},
    {"jobs": [{"task": "no spaces"}]},
    {"jobs": [{"task": "t", "id": ""}]},
    {"jobs": [{"task": "t", "id": "x" * 129}]},
    {"jobs": [{"task": "t", "priority": 101}]},
    {"jobs": [{"task": "t", "delay": -1}]},
    {"jobs": [{"task": "t", "delay": "soon"}]},
    {"jobs": [{"task": "t", "key": "a\x00b"}]},
    {"jobs": [{"task": "t", "labels": {"a": 1}}]},
    {"jobs": [{"task": "good"}, {"task": 1}]},
)


async def test_a_request_that_does_not_match_is_refused_as_a_whole(rest: RestClient) -> None:
    for body in BAD_BODIES:
        assert await rest.refused("POST", PATH, body) == (400, "invalid_request"), body
    assert await count(rest) == 0


async def test_a_payload_that_no_worker_could_read_is_refused(rest: RestClient) -> None:
    for payload in (b'"\xff"', b'"\\ud800"', b"1e999", b"nan", b"[" * 5_000 + b"]" * 5_000):
        body = b'{"jobs":[{"task":"t","payload":%s}]}' % payload
        answer = await rest.client.post(
            PATH, content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code in (400, 422), (payload, answer.text)
    assert await count(rest) == 0


async def test_a_dry_run_answers_the_same_and_changes_nothing(rest: RestClient) -> None:
    jobs = [{"id": "a", "task": "t"}, {"id": "b"}]
    answer = await rest.post(PATH, {"jobs": jobs, "dry_run": True}, status=201)
    assert [each.get("error", {}).get("code") for each in answer["jobs"]] == [None, "invalid_job"]
    assert await count(rest) == 0


async def test_a_refused_job_without_an_id_gets_one_like_the_others(rest: RestClient) -> None:
    """An empty id would lead a client to the path of another operation."""
    for dry_run in (True, False):
        answer = await rest.post(
            PATH, {"jobs": [{}, {"task": "t"}], "dry_run": dry_run}, status=201
        )
        assert answer["jobs"][0]["error"]["code"] == "invalid_job"
        assert all(each["id"] for each in answer["jobs"])


async def test_stored_settings_are_defaults_for_jobs(rest: RestClient) -> None:
    await settings.save_setting(rest.store, "max-retries", "7")
    await rest.enqueue({"id": "a"}, {"id": "b", "max_attempts": 2})
    assert (await rest.job("a")).overrides.max_attempts == 8
    assert (await rest.job("b")).overrides.max_attempts == 2


async def test_jobs_with_their_own_queues_share_a_transaction(rest: RestClient) -> None:
    await rest.store.declare(Queue(name="mail"))
    jobs = [
        {"id": "child", "task": "t", "queue": "mail", "after": ["parent"]},
        {"id": "parent", "task": "t"},
    ]
    answer = await rest.post("/v1/jobs", {"jobs": jobs}, status=201)
    assert [each["id"] for each in answer["jobs"]] == ["child", "parent"]
    assert (await rest.job("child")).queue == "mail"
    assert (await rest.job("parent")).queue == "default"
    shown = await rest.get("/v1/jobs/child")
    assert shown["waits_for"]["parents"] == ["parent"]
    body = {"jobs": [{"task": "t", "to": "w"}]}
    assert await rest.refused("POST", "/v1/jobs", body) == (404, "unknown_queue")
    body = {"jobs": [{"task": "t", "to": "w", "queue": "mail"}]}
    assert await rest.refused("POST", "/v1/jobs", body) == (422, "invalid_job")


async def test_concurrent_requests_share_transactions(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue = rest.store.enqueue
    sizes: list[int] = []
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slow(jobs: Any) -> Any:
        sizes.append(len(jobs))
        entered.set()
        if len(sizes) == 1:
            await go_on.wait()
        return await enqueue(jobs)

    monkeypatch.setattr(rest.store, "enqueue", slow)
    asked = [asyncio.create_task(rest.enqueue({"id": "first"}))]
    await entered.wait()
    asked += [asyncio.create_task(rest.enqueue({"id": f"j{at}"})) for at in range(10)]
    # Requests that arrive while the first is written go together; the others wait in the sockets.
    for _ in range(5):
        await rest.get("/v1/tally")
    go_on.set()
    await asyncio.gather(*asked)
    assert sum(sizes) == 11
    assert len(sizes) < 11


async def test_dependencies_of_one_request_are_bounded(rest: RestClient) -> None:
    # Each is a row that all others wait for.
    await rest.enqueue({"id": "p"})
    body = {"jobs": [{"task": "t", "after": ["p"] * 5_001}] * 2}
    for path in ("/v1/queues/default/jobs", "/v1/jobs", "/v1/batches"):
        whole = body | ({"then": {"task": "u"}} if path == "/v1/batches" else {})
        assert await rest.refused("POST", path, whole) == (413, "too_large")
    [lease] = await rest.lease()
    said = {**verdict(lease, "complete"), "then": body["jobs"]}
    assert await rest.refused("POST", "/v1/settle", {"verdicts": [said]}) == (413, "too_large")


async def test_a_server_creates_queues_for_its_clients(rest: RestClient) -> None:
    body = {"jobs": [{"task": "t", "id": "j", "queue": "mail"}]}
    assert await rest.refused("POST", "/v1/jobs", body) == (404, "unknown_queue")
    await settings.save_setting(rest.store, "create-queues", "yes")
    answer = await rest.post("/v1/jobs", body, status=201)
    assert answer == {"jobs": [{"id": "j", "duplicate": False}]}
    assert (await rest.get("/v1/jobs/j"))["queue"] == "mail"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"items": []}, "did you mean jobs?"),
        ({"jobs": [{"task": "t"}, {"task": "t", "depends_on": ["a"]}]}, "did you mean after?"),
        ({"jobs": [{"task": "t", "visibility_timeout": 30}]}, "did you mean lease?"),
        ({"jobs": [{"task": "t", "dead_deadline": "1h"}]}, "did you mean expires?"),
        ({"jobs": [{"task": "t", "run_at": "2030-01-31"}]}, "such as 2030-01-31T12:00:00Z"),
        ({"jobs": [{"task": "t", "colour": 1}]}, "unknown field `colour` - at `$.jobs[0]`"),
    ],
)
async def test_a_wrong_field_gets_a_suggestion(
    rest: RestClient, body: dict[str, Any], says: str
) -> None:
    answer = await rest.client.post("/v1/queues/default/jobs", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith(says)


async def test_fields_of_a_pasted_job_that_the_queue_sets_are_ignored_with_a_note(
    rest: RestClient,
) -> None:
    pasted = {"task": "t", "state": "done", "attempts": 2, "created_at": None, "priority": 3}
    said = "ignored attempts, created_at, state, updated_at: the queue sets such fields itself"
    for path in ("/v1/queues/default/jobs", "/v1/jobs"):
        id_ = path.replace("/", ".")
        jobs = [{**pasted, "id": id_}, {"task": "t"}, {"task": "t", "updated_at": {"any": ["x"]}}]
        answer = await rest.post(path, {"jobs": jobs}, status=201)
        assert [each["duplicate"] for each in answer["jobs"]] == [False] * 3
        assert answer["note"] == said
        job = await rest.get(f"/v1/jobs/{id_}")
        assert (job["state"], job["attempts"], job["priority"]) == ("waiting", 0, 3)
    batch = {"jobs": [{"task": "t"}], "then": {"task": "u", "state": "x"}}
    answer = await rest.post("/v1/batches", batch, status=201)
    assert answer["note"] == "ignored state: the queue sets such fields itself"


async def test_without_ignored_fields_there_is_no_note(rest: RestClient) -> None:
    for jobs in ([{"task": "t"}], [{"task": "t", "priority": 1}]):
        answer = await rest.post("/v1/jobs", {"jobs": jobs}, status=201)
        assert answer.keys() == {"jobs"}


async def test_an_unknown_field_beside_ignored_ones_is_refused(rest: RestClient) -> None:
    body = {"jobs": [{"task": "t", "state": "x", "colour": 1}]}
    answer = await rest.client.post("/v1/jobs", json=body)
    assert answer.status_code == 400
    assert "unknown field `colour`" in answer.json()["error"]["message"]


async def test_a_job_gets_the_options_that_its_task_declares(rest: RestClient) -> None:
    slow = TaskRecord(queue="slow", overrides=Overrides(timeout_ms=500))
    await settings.save_declared(rest.store, {"slow": slow})
    await rest.post("/v1/queues", {"name": "slow"}, status=201)
    jobs = [{"id": "a", "task": "slow"}, {"id": "b", "task": "slow", "queue": "default"}]
    await rest.post("/v1/jobs", {"jobs": jobs}, status=201)
    await rest.post("/v1/queues/default/jobs", {"jobs": [{"id": "c", "task": "slow"}]}, status=201)
    found = [await rest.job(id_) for id_ in "abc"]
    assert [job.queue for job in found] == ["slow", "default", "default"]
    assert [job.overrides.timeout_ms for job in found] == [500] * 3
