"""Hidden values: callers without `operate` see them in no answer, nor learn them by searching."""

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import codec
from holdfast.core.model import Job, JobFilter, LeaseRequest, NewJob, Queue, Reason, Record
from holdfast.core.verdict import Bury, Complete, Settlement, Verdict
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable
from holdfast.notation.key_patterns import read_key_patterns
from holdfast.ops.settings import SETTING_KIND, SETTINGS, save_setting
from holdfast.server.access.redaction import (
    EVERYTHING_HIDDEN,
    HIDDEN,
    SETTING,
    Redaction,
    RedactionRules,
)
from tests.server.direct_server import DirectServer, direct_server

SECRET = "hunter2"
RULES = RedactionRules(read_key_patterns(SETTING, "password,*_token,card.*"))
PAYLOAD = {"user": "ann", "password": SECRET, "card": {"number": SECRET}, "count": 2**60}
SHOWN = {"user": "ann", "password": HIDDEN, "card": {"number": HIDDEN}, "count": 2**60}


def hidden(value: Any) -> Any:
    return json.loads(RULES.value(json.dumps(value).encode()))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (PAYLOAD, SHOWN),
        ({"a": [{"b": {"API_Token": {"deep": SECRET}}}]}, {"a": [{"b": {"API_Token": HIDDEN}}]}),
        ({"card": [{"number": SECRET}]}, {"card": [{"number": HIDDEN}]}),
        ({"card": SECRET}, {"card": SECRET}),
        ({"card.number": SECRET, "x": 1}, {"card.number": HIDDEN, "x": 1}),
        ({"card.number.last": SECRET}, {"card.number.last": HIDDEN}),
        ([{"password": None}, "password"], [{"password": HIDDEN}, "password"]),
        ({"body": json.dumps({"password": SECRET})}, {"body": json.dumps({"password": HIDDEN})}),
        ({"card": '{"a": "card"}'}, {"card": '{"a":"[hidden]"}'}),
        ("password", "password"),
        (None, None),
    ],
)
def test_values_under_matching_keys_are_hidden_at_any_depth(value: Any, shown: Any) -> None:
    found = hidden(value)
    assert json.dumps(found).replace(" ", "") == json.dumps(shown).replace(" ", "")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"\\u0070assword": "hunter2"}', id="an escaped key"),
        pytest.param(b'{"pass\\u0077ord": "hunter2"}', id="another"),
        pytest.param(b'{"a": {"password": "hunter2"}, "a": 1}', id="a repeated key"),
        pytest.param(b'{"password": "hunter2"', id="damaged JSON"),
        pytest.param(b"user=ann&password=hunter2", id="a form"),
        pytest.param(b"\x80\x04password\x94hunter2", id="bytes"),
        pytest.param(b'{"password": NaN, "x": "hunter2"}', id="JSON that others do not read"),
        pytest.param(b'{"a":' * 900 + b'{"password": "hunter2"}' + b"}" * 900, id="deeply nested"),
        pytest.param(b'["' + b"x" * 200_000 + b'", {"password": "hunter2"}]', id="a large value"),
        pytest.param(
            json.dumps(json.dumps(json.dumps(json.dumps([{"password": SECRET}])))).encode(),
            id="texts in texts",
        ),
    ],
)
def test_what_cannot_be_read_for_sure_is_hidden(data: bytes) -> None:
    found = RULES.value(data)
    assert SECRET.encode() not in found
    msgspec.json.decode(found)


@pytest.mark.parametrize(
    "data", [b"", b"\x00\xff", b'{"a": 1.50, "b": [1e5]}', b"plain text", b'{"a":' + b"1" * 200_000]
)
def test_values_without_the_text_of_a_pattern_stay_byte_for_byte(data: bytes) -> None:
    assert RULES.value(data) == data


KEYS = st.sampled_from(["a", "b", "password", "x_token", "Card", "number", "a.password", "é\\"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_hidden_values_are_gone_and_the_others_stay(value: Any) -> None:
    def marked(each: Any, under: tuple[str, ...] = ()) -> Any:
        """A value with SECRET wherever the rules hide something."""
        if isinstance(each, dict):
            found = {}
            for key, inner in each.items():
                path = (*under, *key.lower().split("."))
                last = path[-1]
                is_hit = last == "password" or last.endswith("_token") or path[-2:-1] == ("card",)
                found[key] = SECRET if is_hit else marked(inner, path)
            return found
        if isinstance(each, list):
            return [marked(inner, under) for inner in each]
        return each

    given_value = marked(value)
    data = json.dumps(given_value).encode()
    found = RULES.value(data)
    assert SECRET.encode() not in found
    expected = data.replace(SECRET.encode(), HIDDEN.encode())
    assert json.loads(found) == json.loads(expected)


def test_a_message_keeps_its_form() -> None:
    attributes = {
        "password": codec.Attribute("String", SECRET.encode()),
        "kind": codec.Attribute("String", b"x"),
    }
    body = json.dumps({"password": SECRET, "a": 1}).encode()
    payload, content_type = codec.pack_envelope(body, attributes)
    job = Job(id="a", task="t", queue="q", payload=payload, content_type=content_type)
    shown = RULES.job(job)
    assert SECRET.encode() not in shown.payload
    message = codec.unpack_envelope(shown.payload, shown.content_type)
    assert json.loads(message.body) == {"password": HIDDEN, "a": 1}
    assert message.attributes["kind"] == attributes["kind"]


def test_bytes_that_are_hidden_as_a_whole_become_json() -> None:
    binary = "application/octet-stream"
    job = Job(id="a", task="t", queue="q", payload=b"\xffpassword", content_type=binary)
    shown = RULES.job(job)
    assert (shown.payload, shown.content_type) == (b'"[hidden]"', codec.JSON)
    assert RULES.job(msgspec.structs.replace(job, payload=b"\xff")).content_type == binary


@pytest.fixture
async def at() -> AsyncIterator[DirectServer]:
    async with direct_server() as at:
        engine = at.engine()
        await save_setting(engine, SETTING, "password,*_token,card.*")
        await engine.declare(Queue(name="q"))
        payload = json.dumps(PAYLOAD).encode()
        headers = {"api_token": SECRET, "trace": "x"}
        jobs = [
            NewJob(id=id_, task="t", queue="q", payload=payload, headers=headers)
            for id_ in ("done", "dead")
        ]
        await engine.enqueue(jobs)
        leases = await engine.lease(LeaseRequest(queues=("q",), limit=2, worker="w"))
        verdicts: dict[str, Verdict] = {
            "done": Complete(result=payload),
            "dead": Bury(Reason.EXPLICIT),
        }
        await engine.settle(
            [Settlement(lease=each, verdict=verdicts[each.job.id]) for each in leases]
        )
        await engine.enqueue([NewJob(id="wait", task="t", queue="q", payload=payload)])
        yield at


ASKED = (
    "/v1/jobs/done",
    "/v1/jobs/dead",
    "/v1/jobs/wait",
    "/v1/jobs",
    "/v1/jobs?view=row",
    "/v1/dead",
    "/v1/jobs/dead/timeline",
    "/v1/jobs/wait/explain",
    "/v1/schedules",
    "/v1/schedules/nightly",
    "/v1/schedules/nightly/runs",
    "/v1/redrives",
)


async def test_observers_see_no_hidden_value_and_operators_all(at: DirectServer) -> None:
    schedule = {"name": "nightly", "every": "1h", "job": {"task": "t", "payload": PAYLOAD}}
    assert (await at.ask("POST", "/v1/schedules", schedule)).status == 201
    redrive = {"filter": {"queue": "q", "task": "t"}, "edit": {"password": SECRET}}
    assert (await at.ask("POST", "/v1/redrives", redrive)).status in (200, 201, 202)
    tokens = {scope: await at.token(scope, name=scope) for scope in ("observe", "operate")}
    seen = 0
    for path in ASKED:
        shown = await at.ask("GET", path, token=tokens["observe"])
        assert shown.status == 200, (path, shown.body)
        assert SECRET.encode() not in shown.body, path
        full = await at.ask("GET", path, token=tokens["operate"])
        seen += SECRET.encode() in full.body
        assert (HIDDEN.encode() in shown.body) is (SECRET.encode() in full.body), path
    assert seen >= 8, "otherwise nothing was tested"
    job = (await at.ask("GET", "/v1/jobs/done", token=tokens["observe"])).json
    assert (job["payload"], job["result"]) == (SHOWN, SHOWN)
    assert job["headers"] == {"api_token": HIDDEN, "trace": "x"}


async def test_verbs_of_the_engine_hide_them_too(at: DirectServer) -> None:
    await at.ask(
        "POST",
        "/v1/schedules",
        {"name": "nightly", "every": "1h", "job": {"task": "t", "payload": PAYLOAD}},
    )
    token = await at.token("observe")
    job = await at.call("get", token, id="done")
    assert json.loads(job.payload) == json.loads(job.result) == SHOWN
    page = await at.call("find", token, wanted=JobFilter(queue="q"), limit=10)
    assert [json.loads(each.payload) for each in page.jobs] == [SHOWN] * 3
    for kind in ("schedule", "redrive"):
        for record in await at.call("load", token, kind=kind, limit=10):
            assert SECRET.encode() not in record.value
    produce = await at.token("produce", name="producer")
    assert json.loads((await at.call("get", produce, id="wait")).payload) == SHOWN


@pytest.mark.parametrize(
    ("text", "found"),
    [(SECRET, []), (SECRET[:3], []), ("ann", ["wait", "dead", "done"]), ("[hidden]", None)],
)
async def test_a_hidden_value_is_not_found_by_searching(
    at: DirectServer, text: str, found: list[str] | None
) -> None:
    token = await at.token("observe")
    page = await at.ask("GET", f"/v1/jobs?contains={text}", token=token)
    ids = [each["id"] for each in page.json["jobs"]]
    assert ids == (["wait", "dead", "done"] if found is None else found)
    assert page.json["examined"] == 3
    operator = await at.token("operate", name="operator")
    page = await at.ask("GET", f"/v1/jobs?contains={SECRET}", token=operator)
    assert len(page.json["jobs"]) == 3


async def test_workers_get_the_jobs_that_they_run_as_they_are(at: DirectServer) -> None:
    token = await at.token("consume")
    assert json.loads((await at.call("get", token, id="wait")).payload) == SHOWN
    request = LeaseRequest(queues=("q",), worker="w")
    [lease] = await at.call("lease", token, request=request)
    assert json.loads(lease.job.payload) == PAYLOAD
    # A handler of dead letters reads the job that it holds.
    assert json.loads((await at.call("get", token, id="wait")).payload) == PAYLOAD
    observe = await at.token("observe", name="observer")
    assert json.loads((await at.call("get", observe, id="wait")).payload) == SHOWN


async def test_large_pages_are_read_in_bounded_portions(
    at: DirectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden payloads are small in the answer, but not in the store."""
    engine = at.engine()
    large = json.dumps({"password": "x" * 500_000}).encode()
    await engine.enqueue(
        [NewJob(id=f"l{number}", task="t", queue="q", payload=large) for number in range(100)]
    )
    page_bytes: list[int] = []
    find = engine.find

    async def counted(wanted: JobFilter, *, limit: int, after: int | None = None) -> Any:
        page = await find(wanted, limit=limit, after=after)
        page_bytes.append(sum(len(job.payload) for job in page.jobs))
        return page

    monkeypatch.setattr(engine, "find", counted)
    token = await at.token("observe")
    page = await at.call("find", token, wanted=JobFilter(queue="q"), limit=1000)
    assert len(page.jobs) == 103
    assert SECRET.encode() not in b"".join(job.payload for job in page.jobs)
    assert max(page_bytes) < 16 * 1024 * 1024


async def test_invalid_patterns_are_refused(at: DirectServer) -> None:
    for value in ("a b", "x?", ",", "a..b"):
        reply = await at.ask("PUT", f"/v1/config/{SETTING}", {"value": value})
        assert (reply.status, reply.code) == (422, "config")
        assert "such as password" in reply.json["error"]["message"]
    reply = await at.ask("PUT", f"/v1/config/{SETTING}", {"value": "ssn"})
    assert reply.json["value"] == "ssn"


async def test_a_changed_setting_applies_after_a_second() -> None:
    engine = MemoryEngine()
    await engine.open()
    source = Redaction(lambda: engine, environment={})
    assert not await source.rules()
    await save_setting(engine, SETTING, "password")
    source._cache.forget()
    rules = await source.rules()
    assert json.loads(rules.value(b'{"password": 1}')) == {"password": HIDDEN}
    given = Redaction(lambda: engine, environment={"HOLDFAST_DASHBOARD_REDACT": "ssn"})
    assert (await given.rules()).value(b'{"password": 1}') == b'{"password": 1}'


async def test_everything_is_hidden_while_the_patterns_are_unknown() -> None:
    engine = MemoryEngine()
    await engine.open()
    wrong = Redaction(lambda: engine, environment={"HOLDFAST_DASHBOARD_REDACT": "a b"})
    assert await wrong.rules() is EVERYTHING_HIDDEN
    # A part of the store is unreachable, and the setting may be in it.
    whole = False
    source = Redaction(lambda: engine, is_whole=lambda: whole, environment={})
    assert await source.rules() is EVERYTHING_HIDDEN
    whole = True
    source._cache.forget()
    assert not await source.rules()
    whole = False
    source._cache.forget()
    assert not await source.rules()
    # A stored value that cannot be read.
    record = Record(kind=SETTING_KIND, key=SETTING, value=b"a b")
    await engine.save([record])
    source._cache.forget()
    assert await source.rules() is EVERYTHING_HIDDEN
    for data in (b"1", b'"x"', b"[1]", b'{"a":1}', b"\xff"):
        assert EVERYTHING_HIDDEN.value(data) == b'"[hidden]"'


async def test_a_store_that_does_not_answer_shows_nothing(
    at: DirectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await at.token("observe")
    await at.ask("GET", "/v1/queues", token=token)

    async def away(*_: Any) -> None:
        raise EngineUnavailable("away")

    monkeypatch.setattr(SETTINGS, "read", away)
    assert (await at.ask("GET", "/v1/jobs/wait", token=token)).code == "unavailable"
