"""The endpoint: which requests are SQS's, both protocols, permissions, bounds and errors."""

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import pytest

from holdfast.core.model import Queue
from holdfast.errors import EngineUnavailable, OutcomeUnknown, StorageFull
from holdfast.ops.audit import ENTRIES
from holdfast.ops.queues import find_queue
from holdfast.server.settings import ServerSettings
from holdfast.server.sqs import catalog as catalogs
from holdfast.server.sqs import endpoint
from holdfast.server.sqs.endpoint import BODY_MAX, HANDLERS
from holdfast.server.sqs.shapes import ACTIONS
from tests.server.direct_server import DirectReply
from tests.server.sqs.sqs_client import ACCOUNT, BASE, SqsClient, SqsRefused, sqs_server

FORM = "application/x-www-form-urlencoded"
PATH = f"/{ACCOUNT}/orders"


@asynccontextmanager
async def closed_server() -> AsyncIterator[SqsClient]:
    """A server where every caller needs a token."""
    settings = ServerSettings(auth=True, namespaces=("team", "111111111111"))
    async with sqs_server(settings=settings) as sqs:
        sqs.token = await sqs.server.token("admin")
        await sqs.create("orders")
        yield sqs


async def form(
    sqs: SqsClient, path: str = "/", method: str = "POST", **parameters: str
) -> DirectReply:
    text = urlencode(parameters)
    if method == "GET":
        return await sqs.server.ask("GET", f"{path}?{text}" if text else path)
    return await sqs.server.ask("POST", path, text.encode(), content_type=FORM)


def test_every_action_has_a_handler() -> None:
    assert set(HANDLERS) == set(ACTIONS)


@pytest.mark.parametrize(
    ("method", "path", "content_type"),
    [
        ("POST", "/", "application/json"),
        ("POST", "/", "text/plain"),
        ("GET", "/", None),
        ("GET", "/?Action=ListQueues", None),
        ("GET", "/00000000000/orders?Action=PurgeQueue", None),
        ("GET", "/0000000000000/orders?Action=PurgeQueue", None),
        ("POST", "/accounts/orders", FORM),
        ("POST", "/orders", FORM),
        ("POST", f"/{ACCOUNT}", FORM),
        ("POST", f"/{ACCOUNT}/a/b", FORM),
    ],
)
async def test_other_requests_are_answered_as_without_sqs(
    method: str, path: str, content_type: str | None
) -> None:
    replies = []
    for settings in (ServerSettings(), ServerSettings(sqs="off")):
        async with sqs_server(settings=settings) as sqs:
            body = None if content_type is None else b"{}"
            reply = await sqs.server.ask(method, path, body, content_type=content_type or "")
            replies.append((reply.status, reply.body))
    assert replies[0] == replies[1]
    if path != "/":
        assert replies[0][0] in (400, 404)


async def test_no_request_is_for_sqs_if_it_is_off() -> None:
    async with sqs_server(settings=ServerSettings(sqs="off")) as sqs:
        assert (await sqs.send("ListQueues", b"{}")).status == 405
        assert (await sqs.server.ask("GET", f"{PATH}?Action=PurgeQueue")).code == "unknown_path"


@pytest.fixture
async def open_sqs() -> AsyncIterator[SqsClient]:
    async with sqs_server() as sqs:
        await sqs.create("orders")
        await sqs.ask("SendMessage", QueueUrl=PATH, MessageBody="x")
        yield sqs


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_navigation_of_a_browser_is_no_action(open_sqs: SqsClient, method: str) -> None:
    """A link or a form on any page must not purge a queue, not even one of the server's own."""
    for site in ("cross-site", "same-origin", "none"):
        reply = await open_sqs.server.ask(
            method,
            f"{PATH}?Action=PurgeQueue",
            b"" if method == "POST" else None,
            content_type=FORM,
            sec_fetch_mode="navigate",
            sec_fetch_site=site,
        )
        assert (reply.status, reply.code) == (404, "unknown_path")
    shown = await open_sqs.attributes(PATH)
    assert shown["ApproximateNumberOfMessages"] == "1"


@pytest.mark.parametrize("signed", ["", "&X-Amz-Signature=0&X-Amz-Credential=x"])
async def test_an_image_on_a_page_of_an_old_browser_is_no_action(
    open_sqs: SqsClient, signed: str
) -> None:
    """It sends neither Origin nor Sec-Fetch-Site."""
    path = f"{PATH}?Action=PurgeQueue{signed}"
    reply = await open_sqs.server.ask("GET", path, user_agent="Mozilla/5.0 (Macintosh) Safari/605")
    assert (reply.status, reply.code) == (404, "unknown_path")
    shown = await open_sqs.attributes(PATH)
    assert shown["ApproximateNumberOfMessages"] == "1"
    assert (await open_sqs.server.ask("GET", path, user_agent="curl/8.0")).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
        {"origin": "https://evil.test"},
        {"host": "evil.test"},
    ],
)
async def test_a_page_of_another_site_may_not_act(
    open_sqs: SqsClient, headers: dict[str, str]
) -> None:
    for method in ("GET", "POST"):
        reply = await open_sqs.server.ask(method, f"{PATH}?Action=PurgeQueue", **headers)
        assert reply.status == 403
        assert b"<Code>AccessDenied</Code>" in reply.body
    assert (await open_sqs.attributes(PATH))["ApproximateNumberOfMessages"] == "1"


async def test_the_query_protocol_on_the_path_of_a_queue(open_sqs: SqsClient) -> None:
    for method in ("GET", "POST"):
        reply = await form(
            open_sqs, PATH, method, Action="GetQueueAttributes", **{"AttributeName.1": "QueueArn"}
        )
        assert reply.status == 200
        assert reply.headers["content-type"] == "text/xml"
        assert f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders".encode() in reply.body
    for action in ("ListQueues", "CreateQueue", "Nonsense"):
        reply = await form(open_sqs, PATH, Action=action, QueueName="x")
        assert reply.status == 400
        assert f"The action {action} is not valid for this endpoint.".encode() in reply.body
    reply = await form(open_sqs, PATH)
    assert (reply.status, b"UnknownOperationException" in reply.body) == (404, True)
    # The parameter wins over the path.
    await open_sqs.create("other")
    reply = await form(
        open_sqs,
        PATH,
        Action="GetQueueAttributes",
        QueueUrl=f"http://elsewhere/{ACCOUNT}/other",
        **{"AttributeName.1": "QueueArn"},
    )
    assert b":other<" in reply.body


async def test_the_query_protocol_on_the_root(open_sqs: SqsClient) -> None:
    reply = await form(open_sqs, Action="ListQueues", Version="2012-11-05")
    assert f"<QueueUrl>{BASE}{PATH}</QueueUrl>".encode() in reply.body
    reply = await form(open_sqs, Action="GetQueueUrl", QueueName="missing")
    assert reply.status == 400
    assert b"AWS.SimpleQueueService.NonExistentQueue" in reply.body
    assert b"for this wsdl version." in reply.body


async def test_json_on_the_path_of_a_queue_needs_no_url(open_sqs: SqsClient) -> None:
    reply = await open_sqs.server.ask(
        "POST",
        PATH,
        b"{}",
        content_type="application/x-amz-json-1.0",
        x_amz_target="AmazonSQS.ListQueueTags",
    )
    assert (reply.status, reply.body) == (200, b"{}")
    assert reply.headers["content-type"] == "application/x-amz-json-1.0"
    assert reply.headers["x-amzn-requestid"]


async def test_urls_have_the_host_of_the_request(open_sqs: SqsClient) -> None:
    reply = await open_sqs.send("GetQueueUrl", b'{"QueueName":"orders"}', host="localhost:9999")
    assert reply.json == {"QueueUrl": f"http://localhost:9999{PATH}"}
    for url in ("http://any.test:1/000000000000/orders", PATH, "orders"):
        assert (await open_sqs.attributes(url))["QueueArn"].endswith(":orders")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"null", b'{"QueueName":1}'])
async def test_a_malformed_body_is_refused(open_sqs: SqsClient, body: bytes) -> None:
    reply = await open_sqs.send("GetQueueUrl", body)
    assert reply.status == 400
    assert reply.json["__type"].partition("#")[2] in (
        "SerializationException",
        "MissingRequiredParameterException",
    )
    assert reply.headers["x-amzn-query-error"].endswith(";Sender")


async def test_an_unknown_action_is_refused(open_sqs: SqsClient) -> None:
    reply = await open_sqs.send("Nonsense", b"{}")
    assert (reply.status, reply.json["__type"]) == (
        400,
        "com.amazon.coral.service#UnknownOperationException",
    )


async def test_bodies_are_bounded(open_sqs: SqsClient) -> None:
    reply = await open_sqs.send("ListQueues", b" " * BODY_MAX + b"{}")
    assert reply.status == 413
    assert reply.headers["x-amzn-query-error"].startswith("RequestEntityTooLarge")
    reply = await open_sqs.send("ListQueues", b"{}", content_length=str(10**12))
    assert reply.status == 413
    reply = await open_sqs.send("ListQueues", gzip.compress(b"{}"), content_encoding="gzip")
    assert reply.status == 400
    reply = await open_sqs.send("ListQueues", b" " * (BODY_MAX - 2) + b"{}")
    assert reply.status == 200


async def test_every_request_frees_what_it_held(open_sqs: SqsClient) -> None:
    sizes = (10, 100_000, BODY_MAX + 1)
    await asyncio.gather(
        *(open_sqs.send("ListQueues", b"x" * size) for size in sizes),
        *(open_sqs.send("Nonsense", b"{}") for _ in range(3)),
        open_sqs.send("ReceiveMessage", json.dumps({"QueueUrl": PATH}).encode()),
        open_sqs.send("SendMessage", json.dumps({"QueueUrl": PATH, "MessageBody": "y"}).encode()),
    )
    pressure = open_sqs.server.application.pressure
    assert set(pressure.under_way().values()) == {0}
    assert pressure._bytes_total == 0
    assert not pressure._bytes
    assert not +pressure._shares


async def test_a_busy_server_answers_in_the_protocol_of_the_client(open_sqs: SqsClient) -> None:
    pressure = open_sqs.server.application.pressure
    pressure._bytes_total = 10**12
    try:
        reply = await open_sqs.send("ListQueues", b"{}")
        assert reply.status == 503
        assert reply.headers["retry-after"] == "1"
        assert reply.json["__type"].endswith("#ServiceUnavailableException")
        reply = await form(open_sqs, Action="ListQueues")
        assert reply.status == 503
        assert b"<Type>Receiver</Type><Code>ServiceUnavailable</Code>" in reply.body
    finally:
        pressure._bytes_total = 0


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (EngineUnavailable("gone"), 503, "ServiceUnavailable"),
        (OutcomeUnknown("perhaps"), 503, "ServiceUnavailable"),
        (StorageFull("full"), 503, "ServiceUnavailable"),
        (ZeroDivisionError("a bug"), 500, "InternalFailure"),
    ],
)
async def test_errors_of_the_store(
    open_sqs: SqsClient,
    error: Exception,
    status: int,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: Any) -> None:
        raise error

    monkeypatch.setitem(endpoint.HANDLERS, "ListQueues", fail)
    with pytest.raises(SqsRefused) as refused:
        await open_sqs.ask("ListQueues")
    assert (refused.value.status, refused.value.code) == (status, code)
    assert "a bug" not in refused.value.message


async def test_requests_are_counted_by_action(open_sqs: SqsClient) -> None:
    await open_sqs.ask("ListQueues")
    await open_sqs.send("Nonsense", b"{}")
    requests = open_sqs.server.apps["default"].telemetry.meter.totals.requests
    assert "2xx" in requests["sqs ListQueues"]
    assert "4xx" in requests["sqs unknown"]
    assert not any("Nonsense" in name for name in requests)


async def test_sends_do_not_read_the_queue_each_time(
    open_sqs: SqsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()

    async def count(engine: Any, name: str, **more: Any) -> Any:
        reads[name] += 1
        return await find_queue(engine, name, **more)

    monkeypatch.setattr(catalogs, "find_queue", count)
    monkeypatch.setattr("holdfast.server.access.quotas.SHARED_READ_AGE_S_MAX", 3_600.0)
    open_sqs.endpoint.state._catalogs.clear()
    for _ in range(20):
        await open_sqs.ask("SendMessage", QueueUrl=PATH, MessageBody="x")
    assert reads["orders"] == 1
    # A change made here is seen at once.
    await open_sqs.ask("SetQueueAttributes", QueueUrl=PATH, Attributes={"DelaySeconds": "9"})
    assert (await open_sqs.attributes(PATH))["DelaySeconds"] == "9"


async def test_a_queue_that_was_missing_is_found_once_it_exists(open_sqs: SqsClient) -> None:
    with pytest.raises(SqsRefused):
        await open_sqs.attributes("late")
    await open_sqs.store.declare(Queue(name="late"))
    assert await open_sqs.attributes("late")


async def test_a_caller_without_credentials_is_refused() -> None:
    async with closed_server() as sqs:
        sqs.token = None
        reply = await sqs.server.ask(
            "POST", "/", b"{}", content_type="x", x_amz_target="AmazonSQS.ListQueues"
        )
        assert reply.status == 403
        assert reply.headers["x-amzn-query-error"].startswith("MissingAuthenticationToken")
        with pytest.raises(SqsRefused) as refused:
            await sqs.ask("ListQueues")
        assert refused.value.status in (400, 403)
        sqs.token = f"hf_{'0' * 12}_{'0' * 64}"
        with pytest.raises(SqsRefused) as refused:
            await sqs.ask("ListQueues")
        assert (refused.value.status, refused.value.code) == (403, "InvalidClientTokenId")


NEEDS: dict[str, tuple[str, dict[str, Any]]] = {
    "GetQueueUrl": ("known", {"QueueName": "orders"}),
    "GetQueueAttributes": ("known", {"QueueUrl": "orders", "AttributeNames": ["All"]}),
    "ListQueues": ("known", {}),
    "ListQueueTags": ("known", {"QueueUrl": "orders"}),
    "ListDeadLetterSourceQueues": ("known", {"QueueUrl": "orders"}),
    "SendMessage": ("produce", {"QueueUrl": "orders", "MessageBody": "x"}),
    "ReceiveMessage": ("consume", {"QueueUrl": "orders"}),
    "CreateQueue": ("operate", {"QueueName": "new"}),
    "SetQueueAttributes": ("operate", {"QueueUrl": "orders", "Attributes": {"DelaySeconds": "1"}}),
    "TagQueue": ("operate", {"QueueUrl": "orders", "Tags": {"a": "b"}}),
    "UntagQueue": ("operate", {"QueueUrl": "orders", "TagKeys": ["first"]}),
    "AddPermission": (
        "operate",
        {"QueueUrl": "orders", "Label": "l", "AWSAccountIds": ["1" * 12], "Actions": ["*"]},
    ),
    "PurgeQueue": ("operate", {"QueueUrl": "orders"}),
    "StartMessageMoveTask": ("operate", {"SourceArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"}),
    "DeleteQueue": ("admin", {"QueueUrl": "orders"}),
}
GRANTS = {
    "produce": {"known", "produce"},
    "consume": {"known", "consume"},
    "observe": {"known", "observe"},
    "operate": {"known", "produce", "consume", "operate"},
    "admin": {"known", "produce", "consume", "operate", "admin"},
}


@pytest.mark.parametrize("scope", GRANTS)
async def test_each_action_needs_its_scope(scope: str) -> None:
    async with closed_server() as sqs:
        await sqs.ask("TagQueue", QueueUrl="orders", Tags={"first": "1"})
        await sqs.create("dead")
        policy = {
            "deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead",
            "maxReceiveCount": 1,
        }
        await sqs.create("source", RedrivePolicy=json.dumps(policy))
        sqs.token = await sqs.server.token(scope, name="limited")
        for action, (needed, members) in NEEDS.items():
            if needed in GRANTS[scope]:
                await sqs.ask(action, **members)
                continue
            with pytest.raises(SqsRefused) as refused:
                await sqs.ask(action, **members)
            assert (refused.value.status, refused.value.code) == (403, "AccessDenied"), action


async def test_only_a_producer_makes_a_queue_fair() -> None:
    async with closed_server() as sqs:
        sqs.token = await sqs.server.token("consume", name="limited")
        with pytest.raises(SqsRefused, match="produce"):
            await sqs.ask("SendMessage", QueueUrl="orders", MessageBody="x", MessageGroupId="g")
        view = await find_queue(sqs.store, "orders")
        assert view is not None
        assert view.queue.fairness == "off"


async def test_queues_outside_the_prefix_do_not_exist() -> None:
    async with closed_server() as sqs:
        await sqs.create("team-mail")
        sqs.token = await sqs.server.token("operate", name="team", prefix="team-")
        assert await sqs.names() == ["team-mail"]
        for action, (_, members) in NEEDS.items():
            if members.get("QueueUrl") != "orders" and members.get("QueueName") != "orders":
                continue
            with pytest.raises(SqsRefused) as refused:
                await sqs.ask(action, **members)
            assert refused.value.shape == "QueueDoesNotExist", action
        for name in ("orders", "other"):
            with pytest.raises(SqsRefused) as refused:
                await sqs.create(name)
            assert refused.value.code == "AccessDenied"
        await sqs.create("team-new")
        await sqs.ask("TagQueue", QueueUrl="team-mail", Tags={"a": "b"})
        assert await sqs.names() == ["team-mail", "team-new"]


async def test_a_dead_letter_queue_outside_the_prefix_stays() -> None:
    """An operator of the source can change the other attributes."""
    async with closed_server() as sqs:
        policy = {
            "deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders",
            "maxReceiveCount": 1,
        }
        url = await sqs.create("team-mail", RedrivePolicy=json.dumps(policy))
        await sqs.create("team-news")
        sqs.token = await sqs.server.token("operate", name="team", prefix="team-")
        await sqs.ask("SetQueueAttributes", QueueUrl=url, Attributes={"VisibilityTimeout": "7"})
        view = await find_queue(sqs.store, "team-mail")
        assert view is not None
        assert (view.queue.lease_ms, view.queue.dead_queue) == (7_000, "orders")
        with pytest.raises(SqsRefused, match="Dead letter target does not exist"):
            await sqs.ask(
                "SetQueueAttributes",
                QueueUrl="team-news",
                Attributes={"RedrivePolicy": json.dumps(policy)},
            )


async def test_a_token_is_for_one_account() -> None:
    async with closed_server() as sqs:
        everywhere = await sqs.server.token("admin", name="e", namespace="*")
        sqs.token = everywhere
        assert await sqs.names() == ["orders"]
        missing = f"{BASE}/222222222222/orders"
        with pytest.raises(SqsRefused) as refused:
            await sqs.attributes(missing)
        assert refused.value.shape == "QueueDoesNotExist"
        sqs.token = await sqs.server.token("admin", name="o", namespace="111111111111")
        url = await sqs.create("mail")
        assert url == f"{BASE}/111111111111/mail"
        with pytest.raises(SqsRefused) as refused:
            await sqs.attributes(f"{BASE}{PATH}")
        assert refused.value.code == "AccessDenied"
        sqs.token = everywhere
        assert (await sqs.attributes(url))["QueueArn"].endswith(":111111111111:mail")
        sqs.token = await sqs.server.token("admin", name="t", namespace="team")
        with pytest.raises(SqsRefused) as refused:
            await sqs.names()
        assert "has no SQS account" in refused.value.message


async def test_acts_of_operators_are_audited() -> None:
    async with closed_server() as sqs:
        await sqs.ask("PurgeQueue", QueueUrl="orders")
        await sqs.ask("DeleteQueue", QueueUrl="orders")
        entries = [each.what for each in (await ENTRIES.values(sqs.store)).values()]
        assert {"sqs-queue.save", "queue.declare", "queue.purge", "queue.drop"} <= set(entries)
