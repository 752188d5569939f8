"""Actions on queues: the record and the settings of the queue, names, races and the 60 s rules."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import JobFilter, NewJob, Queue, Record, State
from holdfast.ops.queues import drop_queue, find_queue
from holdfast.ops.sqs import SQS_QUEUES, SqsQueue
from holdfast.server.settings import ServerSettings
from holdfast.server.sqs import queues as queue_actions
from tests.server.sqs.sqs_client import ACCOUNT, BASE, SqsClient, SqsRefused, sqs_server

DLQ_ARN = f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"
POLICY = json.dumps({"deadLetterTargetArn": DLQ_ARN, "maxReceiveCount": 3})


async def settings_of(sqs: SqsClient, name: str) -> Queue:
    view = await find_queue(sqs.store, name)
    assert view is not None
    return view.queue


async def record_of(sqs: SqsClient, key: str) -> SqsQueue:
    stored = await SQS_QUEUES.read(sqs.store, key)
    assert stored is not None
    assert stored.value is not None
    return stored.value


async def refusal(sqs: SqsClient, action: str, **members: Any) -> SqsRefused:
    with pytest.raises(SqsRefused) as refused:
        await sqs.ask(action, **members)
    return refused.value


async def test_a_queue_is_created_found_listed_and_deleted(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    assert url == f"{BASE}/{ACCOUNT}/orders"
    assert await sqs.ask("GetQueueUrl", QueueName="orders") == {"QueueUrl": url}
    assert await sqs.names() == ["orders"]
    await sqs.ask("DeleteQueue", QueueUrl=url)
    assert await sqs.ask("ListQueues") == {}
    for action, members in (
        ("GetQueueUrl", {"QueueName": "orders"}),
        ("GetQueueAttributes", {"QueueUrl": url}),
        ("DeleteQueue", {"QueueUrl": url}),
        ("PurgeQueue", {"QueueUrl": url}),
        ("TagQueue", {"QueueUrl": url, "Tags": {"a": "b"}}),
        ("SendMessage", {"QueueUrl": url, "MessageBody": "x"}),
        ("ReceiveMessage", {"QueueUrl": url}),
    ):
        error = await refusal(sqs, action, **members)
        assert error.code == "AWS.SimpleQueueService.NonExistentQueue", action
    assert await sqs.store.queues(names=["orders"]) == []


async def test_a_queue_made_by_a_client_keeps_no_finished_messages(sqs: SqsClient) -> None:
    await sqs.create("orders", VisibilityTimeout="45", MessageRetentionPeriod="600")
    queue = await settings_of(sqs, "orders")
    assert queue.lease_ms == 45_000
    assert queue.retention_ms == 0
    assert queue.dead_retention_ms == 600_000
    assert queue.max_attempts == 0
    assert queue.dead_queue is None
    assert queue.backoff.delay_ms(5, 0.5) == 0


async def test_a_visibility_timeout_of_zero_is_shown_as_zero(sqs: SqsClient) -> None:
    url = await sqs.create("orders", VisibilityTimeout="0")
    assert (await settings_of(sqs, "orders")).lease_ms == bounds.LEASE_MS_MIN
    assert (await sqs.attributes(url))["VisibilityTimeout"] == "0"


async def test_creating_a_queue_again_compares_the_given_attributes(sqs: SqsClient) -> None:
    url = await sqs.create("orders", DelaySeconds="5", VisibilityTimeout="60")
    assert await sqs.create("orders") == url
    assert await sqs.create("orders", DelaySeconds="5") == url
    error = await refusal(
        sqs, "CreateQueue", QueueName="orders", Attributes={"VisibilityTimeout": "61"}
    )
    assert (error.shape, error.code) == ("QueueNameExists", "QueueAlreadyExists")
    assert error.message.endswith("different value for attribute VisibilityTimeout")
    assert (await sqs.attributes(url))["VisibilityTimeout"] == "60"


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 81, "orders.fifo", "ü", "a/b"])
async def test_a_name_that_sqs_does_not_allow_is_refused(name: str) -> None:
    async with sqs_server() as sqs:
        error = await refusal(sqs, "CreateQueue", QueueName=name)
        assert error.status == 400
        assert error.code in ("InvalidParameterValue", "MissingParameter")


async def test_attributes_are_changed_by_name(sqs: SqsClient) -> None:
    url = await sqs.create("orders", DelaySeconds="5")
    sqs.clock.advance(3_000)
    await sqs.ask(
        "SetQueueAttributes",
        QueueUrl=url,
        Attributes={"VisibilityTimeout": "7", "ReceiveMessageWaitTimeSeconds": "20"},
    )
    shown = await sqs.attributes(url)
    assert shown["DelaySeconds"] == "5"
    assert shown["VisibilityTimeout"] == "7"
    assert shown["ReceiveMessageWaitTimeSeconds"] == "20"
    assert int(shown["LastModifiedTimestamp"]) == int(shown["CreatedTimestamp"]) + 3
    assert (await settings_of(sqs, "orders")).lease_ms == 7_000
    assert not (await record_of(sqs, "us-east-1/orders")).pending


async def test_unnamed_attributes_are_left_out_and_unknown_ones_refused(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    assert await sqs.ask("GetQueueAttributes", QueueUrl=url) == {}
    assert await sqs.attributes(url, "DelaySeconds") == {"DelaySeconds": "0"}
    error = await refusal(sqs, "GetQueueAttributes", QueueUrl=url, AttributeNames=["Nonsense"])
    assert error.shape == "InvalidAttributeName"
    everything = await sqs.attributes(url)
    assert not {"Policy", "RedrivePolicy", "KmsMasterKeyId", "FifoQueue"} & set(everything)
    assert everything["QueueArn"] == f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders"


async def test_a_refused_change_changes_nothing(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    before = await sqs.attributes(url)
    for attributes in (
        {"VisibilityTimeout": "7", "DelaySeconds": "901"},
        {"RedrivePolicy": POLICY},
        {"RedrivePolicy": "{"},
        {"Nonsense": "1"},
        {"FifoQueue": "true"},
    ):
        error = await refusal(sqs, "SetQueueAttributes", QueueUrl=url, Attributes=attributes)
        assert error.status == 400
    assert await sqs.attributes(url) == before


async def test_a_redrive_policy_sets_the_dead_queue_and_one_more_attempt(sqs: SqsClient) -> None:
    dead = await sqs.create("dead")
    url = await sqs.create("orders", RedrivePolicy=POLICY)
    queue = await settings_of(sqs, "orders")
    assert (queue.dead_queue, queue.max_attempts) == ("dead", 4)
    sources = await sqs.ask("ListDeadLetterSourceQueues", QueueUrl=dead)
    assert sources == {"queueUrls": [url]}
    await sqs.ask("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": ""})
    queue = await settings_of(sqs, "orders")
    assert (queue.dead_queue, queue.max_attempts) == (None, 0)
    assert "RedrivePolicy" not in await sqs.attributes(url)
    assert await sqs.ask("ListDeadLetterSourceQueues", QueueUrl=dead) == {"queueUrls": []}


@pytest.mark.parametrize(
    "arn",
    [
        f"arn:aws:sqs:us-east-1:{ACCOUNT}:missing",
        "arn:aws:sqs:us-east-1:111111111111:dead",
        f"arn:aws:sqs:eu-west-1:{ACCOUNT}:dead",
        f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead.fifo",
        f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders",
        f"arn:aws:sqs:us-east-1:{ACCOUNT}:closed",
    ],
)
async def test_a_dead_letter_target_must_exist_and_permit_the_source(arn: str) -> None:
    async with sqs_server() as sqs:
        for name, attributes in (
            ("dead", {}),
            ("orders", {}),
            ("dead.fifo", {"FifoQueue": "true"}),
            ("closed", {"RedriveAllowPolicy": json.dumps({"redrivePermission": "denyAll"})}),
        ):
            await sqs.create(name, **attributes)
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
        error = await refusal(
            sqs,
            "SetQueueAttributes",
            QueueUrl=f"/{ACCOUNT}/orders",
            Attributes={"RedrivePolicy": policy},
        )
        assert error.code == "InvalidParameterValue"


async def test_no_message_dies_while_its_dead_letter_queue_is_gone(sqs: SqsClient) -> None:
    dead = await sqs.create("dead")
    url = await sqs.create("orders", RedrivePolicy=POLICY)
    await sqs.ask("DeleteQueue", QueueUrl=dead)
    queue = await settings_of(sqs, "orders")
    assert (queue.dead_queue, queue.max_attempts) == (None, 0)
    # The policy stays, as on AWS: the queue may be created again.
    assert json.loads((await sqs.attributes(url))["RedrivePolicy"])["maxReceiveCount"] == 3


async def test_a_fifo_queue_gives_up_to_ten_of_a_group(sqs: SqsClient) -> None:
    url = await sqs.create("orders.fifo", FifoQueue="true")
    assert (await settings_of(sqs, "orders.fifo")).group_batch == 10
    assert (await sqs.attributes(url))["FifoQueue"] == "true"


async def test_a_queue_of_another_program_is_visible(sqs: SqsClient) -> None:
    await sqs.store.declare(Queue(name="graves"))
    await sqs.store.declare(
        Queue(name="mail", lease_ms=90_000, dead_queue="graves", max_attempts=6)
    )
    await sqs.store.declare(Queue(name="has.dots"))
    assert await sqs.names() == ["graves", "mail"]
    url = f"{BASE}/{ACCOUNT}/mail"
    shown = await sqs.attributes(url)
    assert shown["VisibilityTimeout"] == "90"
    assert json.loads(shown["RedrivePolicy"]) == {
        "deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:graves",
        "maxReceiveCount": 5,
    }
    before = await settings_of(sqs, "mail")
    await sqs.ask("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "4"})
    # Settings that no client set stay the operator's.
    assert await settings_of(sqs, "mail") == before
    assert (await sqs.attributes(url))["DelaySeconds"] == "4"
    assert (await sqs.attributes(url))["VisibilityTimeout"] == "90"
    assert await sqs.create("mail", VisibilityTimeout="90") == url


async def test_a_timeout_that_an_operator_changed_is_shown(sqs: SqsClient) -> None:
    url = await sqs.create("orders", VisibilityTimeout="30")
    queue = await settings_of(sqs, "orders")
    await sqs.store.declare(replace(queue, lease_ms=120_000))
    # Other programs' changes are seen within a second.
    catalog = await sqs.endpoint.state.catalog("default", sqs.server.apps["default"])
    catalog.forget("us-east-1", "orders")
    assert (await sqs.attributes(url))["VisibilityTimeout"] == "120"


async def test_the_default_queue_is_listed_once_it_is_used(sqs: SqsClient) -> None:
    assert await sqs.names() == []
    await sqs.store.enqueue([NewJob(id="1", task="t")])
    assert await sqs.names() == ["default"]


async def test_lists_are_paged(sqs: SqsClient) -> None:
    made = [f"q{number}" for number in range(7)]
    for name in random.sample(made, len(made)):
        await sqs.create(name)
    await sqs.create("other")
    found: list[str] = []
    token: dict[str, str] = {}
    while True:
        answer = await sqs.ask("ListQueues", QueueNamePrefix="q", MaxResults=3, **token)
        found += [url.rpartition("/")[2] for url in answer["QueueUrls"]]
        if "NextToken" not in answer:
            break
        token = {"NextToken": answer["NextToken"]}
    assert found == made
    assert "NextToken" not in await sqs.ask("ListQueues")
    for members in ({"MaxResults": 0}, {"MaxResults": 1001}, {"NextToken": "\u00e9"}):
        error = await refusal(sqs, "ListQueues", **members)
        assert error.code == "InvalidParameterValue"


async def test_tags_are_added_changed_and_removed(sqs: SqsClient) -> None:
    answer = await sqs.ask("CreateQueue", QueueName="orders", tags={"team": "a"})
    url = answer["QueueUrl"]
    await sqs.ask("CreateQueue", QueueName="orders", tags={"team": "ignored"})
    await sqs.ask("TagQueue", QueueUrl=url, Tags={"team": "b", "Team": "c"})
    assert await sqs.ask("ListQueueTags", QueueUrl=url) == {"Tags": {"team": "b", "Team": "c"}}
    await sqs.ask("UntagQueue", QueueUrl=url, TagKeys=["team", "unknown"])
    assert await sqs.ask("ListQueueTags", QueueUrl=url) == {"Tags": {"Team": "c"}}
    many = {f"k{number}": "v" for number in range(50)}
    error = await refusal(sqs, "TagQueue", QueueUrl=url, Tags=many)
    assert error.message == "Too many tags added for queue orders."
    assert (await refusal(sqs, "TagQueue", QueueUrl=url, Tags={})).code == "MissingParameter"
    for tags in ({"": "v"}, {"k" * 129: "v"}, {"k": "v" * 257}):
        assert (await refusal(sqs, "TagQueue", QueueUrl=url, Tags=tags)).status == 400
    await sqs.ask("UntagQueue", QueueUrl=url, TagKeys=["Team"])
    assert await sqs.ask("ListQueueTags", QueueUrl=url) == {}


async def test_permissions_are_statements_of_the_policy(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    grant = {"AWSAccountIds": ["111111111111", "222222222222"], "Actions": ["SendMessage"]}
    await sqs.ask("AddPermission", QueueUrl=url, Label="one", **grant)
    await sqs.ask(
        "AddPermission", QueueUrl=url, Label="two", AWSAccountIds=["333333333333"], Actions=["*"]
    )
    policy = json.loads((await sqs.attributes(url))["Policy"])
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders"
    assert policy == {
        "Version": "2008-10-17",
        "Id": f"{arn}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "one",
                "Effect": "Allow",
                "Principal": {
                    "AWS": ["arn:aws:iam::111111111111:root", "arn:aws:iam::222222222222:root"]
                },
                "Action": "SQS:SendMessage",
                "Resource": arn,
            },
            {
                "Sid": "two",
                "Effect": "Allow",
                "Principal": {"AWS": "arn:aws:iam::333333333333:root"},
                "Action": "SQS:*",
                "Resource": arn,
            },
        ],
    }
    error = await refusal(sqs, "AddPermission", QueueUrl=url, Label="one", **grant)
    assert error.message == "Value one for parameter Label is invalid. Reason: Already exists."
    await sqs.ask("RemovePermission", QueueUrl=url, Label="one")
    await sqs.ask("RemovePermission", QueueUrl=url, Label="two")
    assert "Policy" not in await sqs.attributes(url)
    error = await refusal(sqs, "RemovePermission", QueueUrl=url, Label="one")
    assert error.message == "Value one for parameter Label is invalid. Reason: can't find label."


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"Label": "a b"}, "InvalidParameterValue"),
        ({"Actions": []}, "MissingParameter"),
        ({"Actions": ["SendMessage"] * 8}, "OverLimit"),
        ({"Actions": ["Nonsense"]}, "InvalidParameterValue"),
        ({"Actions": ["CreateQueue"]}, "InvalidParameterValue"),
        ({"AWSAccountIds": []}, "InvalidParameterValue"),
        ({"AWSAccountIds": ["1"]}, "InvalidParameterValue"),
    ],
)
async def test_a_wrong_permission_is_refused(change: dict[str, Any], code: str) -> None:
    async with sqs_server() as sqs:
        url = await sqs.create("orders")
        grant = {"Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["*"]}
        error = await refusal(sqs, "AddPermission", QueueUrl=url, **{**grant, **change})
        assert error.code == code


@pytest.mark.parametrize("policy", ["[]", "{}", '{"Statement":1}', '{"Statement":[[]]}', "1"])
async def test_permissions_survive_any_policy_of_a_client(policy: str) -> None:
    async with sqs_server() as sqs:
        url = await sqs.create("orders")
        members = {"QueueUrl": url, "Attributes": {"Policy": policy}}
        reply = await sqs.send("SetQueueAttributes", json.dumps(members).encode())
        assert reply.status in (200, 400)
        await sqs.ask(
            "AddPermission", QueueUrl=url, Label="l", AWSAccountIds=["1" * 12], Actions=["*"]
        )


async def test_a_purge_deletes_waiting_delayed_leased_and_dead_messages(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    for number in range(3):
        await sqs.ask(
            "SendMessage", QueueUrl=url, MessageBody=str(number), DelaySeconds=number * 100
        )
    await sqs.ask("ReceiveMessage", QueueUrl=url)
    await sqs.store.enqueue([NewJob(id="dead", task="t", queue="orders", expires_ms=1)])
    before = await record_of(sqs, "us-east-1/orders")
    await sqs.ask("PurgeQueue", QueueUrl=url)
    page = await sqs.store.find(JobFilter(queue="orders"), limit=10)
    assert page.jobs == ()
    after = await record_of(sqs, "us-east-1/orders")
    assert after.epoch > before.epoch
    assert not after.purging


async def test_a_queue_is_purged_once_a_minute(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    await sqs.ask("PurgeQueue", QueueUrl=url)
    sqs.clock.advance(59_999)
    error = await refusal(sqs, "PurgeQueue", QueueUrl=url)
    assert (error.status, error.shape) == (403, "PurgeQueueInProgress")
    assert error.message == ("Only one PurgeQueue operation on orders is allowed every 60 seconds.")
    sqs.clock.advance(1)
    await sqs.ask("PurgeQueue", QueueUrl=url)


async def test_a_purge_is_allowed_after_the_clock_was_set_back(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    await sqs.ask("PurgeQueue", QueueUrl=url)
    sqs.clock.jump(-3_600_000)
    await sqs.ask("PurgeQueue", QueueUrl=url)


async def test_a_deleted_queue_is_created_again_after_a_minute(sqs: SqsClient) -> None:
    url = await sqs.create("orders", DelaySeconds="5")
    old = await record_of(sqs, "us-east-1/orders")
    await sqs.ask("DeleteQueue", QueueUrl=url)
    sqs.clock.advance(59_999)
    error = await refusal(sqs, "CreateQueue", QueueName="orders")
    assert error.shape == "QueueDeletedRecently"
    sqs.clock.advance(1)
    assert await sqs.create("orders") == url
    assert (await sqs.attributes(url))["DelaySeconds"] == "0"
    assert (await record_of(sqs, "us-east-1/orders")).epoch > old.epoch


async def test_relaxed_leaves_out_both_pauses(tmp_path: Path) -> None:
    async with sqs_server("sqlite", tmp_path, ServerSettings(sqs="relaxed")) as sqs:
        for _ in range(3):
            url = await sqs.create("orders")
            await sqs.ask("PurgeQueue", QueueUrl=url)
            await sqs.ask("PurgeQueue", QueueUrl=url)
            await sqs.ask("DeleteQueue", QueueUrl=url)


async def test_regions_have_queues_of_their_own(sqs: SqsClient) -> None:
    other = SqsClient(sqs.server, sqs.clock, region="eu-west-1")
    here, there = await sqs.create("orders"), await other.create("orders", DelaySeconds="9")
    assert here == there
    assert (await sqs.attributes(here))["DelaySeconds"] == "0"
    assert (await other.attributes(there))["DelaySeconds"] == "9"
    assert (await other.attributes(there))["QueueArn"].split(":")[3] == "eu-west-1"
    await sqs.ask("SendMessage", QueueUrl=here, MessageBody="x")
    assert "Messages" not in await other.ask("ReceiveMessage", QueueUrl=there)
    await other.ask("DeleteQueue", QueueUrl=there)
    assert await sqs.names() == ["orders"]
    assert await other.names() == []
    assert len((await sqs.ask("ReceiveMessage", QueueUrl=here))["Messages"]) == 1


async def test_a_generated_name_is_legal_and_avoids_queues_of_others(sqs: SqsClient) -> None:
    other = SqsClient(sqs.server, sqs.clock, region="ap-southeast-2")
    names = ["x" * 80, "x" * 79 + "y", "orders", "x" * 75 + ".fifo"]
    await sqs.store.declare(Queue(name="orders.ap-southeast-2"))
    for name in names:
        await other.create(name, **({"FifoQueue": "true"} if "." in name else {}))
    made = [(await record_of(sqs, f"ap-southeast-2/{name}")).queue for name in names]
    assert len(set(made)) == len(names)
    assert "orders.ap-southeast-2" not in made
    assert all(bounds.QUEUE_NAME.match(each) for each in made)
    assert await other.names() == sorted(names)
    assert await sqs.names() == []


async def test_accounts_are_namespaces(tmp_path: Path) -> None:
    settings = ServerSettings(namespaces=("111111111111",))
    async with sqs_server("sqlite", tmp_path, settings) as sqs:
        other = SqsClient(sqs.server, sqs.clock, key_id="111111111111")
        url = await other.create("orders")
        assert url == f"{BASE}/111111111111/orders"
        assert await sqs.names() == []
        # A local caller may use any served account by its URL.
        assert (await sqs.attributes(url))["QueueArn"].split(":")[4] == "111111111111"
        found = await sqs.ask(
            "GetQueueUrl", QueueName="orders", QueueOwnerAWSAccountId="111111111111"
        )
        assert found == {"QueueUrl": url}
        for missing in (f"{BASE}/222222222222/orders", "nonsense://", f"/{ACCOUNT}/orders"):
            error = await refusal(sqs, "GetQueueAttributes", QueueUrl=missing)
            assert error.shape == "QueueDoesNotExist"
        unknown = SqsClient(sqs.server, sqs.clock, key_id="222222222222")
        assert (await refusal(unknown, "ListQueues")).status == 403


async def test_concurrent_creators_agree(sqs: SqsClient) -> None:
    """Of different attributes one creator wins, and the settings are the winner's."""
    answers = await asyncio.gather(
        *(sqs.create("orders", VisibilityTimeout=str(10 + n)) for n in range(8)),
        return_exceptions=True,
    )
    winners = [each for each in answers if isinstance(each, str)]
    losers = [each for each in answers if isinstance(each, SqsRefused)]
    assert len(winners) >= 1
    assert {each.shape for each in losers} <= {"QueueNameExists"}
    assert len(winners) + len(losers) == 8
    shown = await sqs.attributes(winners[0])
    queue = await settings_of(sqs, "orders")
    assert queue.lease_ms == int(shown["VisibilityTimeout"]) * 1_000
    assert not (await record_of(sqs, "us-east-1/orders")).pending


async def test_concurrent_changes_of_different_attributes_all_count(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    changes: list[dict[str, str]] = [
        {"DelaySeconds": "1"},
        {"VisibilityTimeout": "2"},
        {"ReceiveMessageWaitTimeSeconds": "3"},
        {"MessageRetentionPeriod": "400"},
    ]
    await asyncio.gather(
        *(sqs.ask("SetQueueAttributes", QueueUrl=url, Attributes=each) for each in changes),
        *(sqs.ask("TagQueue", QueueUrl=url, Tags={f"k{n}": "v"}) for n in range(4)),
    )
    shown = await sqs.attributes(url)
    assert [shown[name] for each in changes for name in each] == ["1", "2", "3", "400"]
    assert len((await sqs.ask("ListQueueTags", QueueUrl=url))["Tags"]) == 4
    assert (await settings_of(sqs, "orders")).lease_ms == 2_000


async def test_a_creation_that_was_killed_can_be_repeated(
    sqs: SqsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_settings = queue_actions.apply_settings

    async def die(*_: Any) -> None:
        raise OSError("killed")

    monkeypatch.setattr(queue_actions, "apply_settings", die)
    assert (await refusal(sqs, "CreateQueue", QueueName="orders")).status == 500
    assert (await refusal(sqs, "GetQueueUrl", QueueName="orders")).status == 400
    monkeypatch.setattr(queue_actions, "apply_settings", apply_settings)
    url = await sqs.create("orders", DelaySeconds="7")
    assert (await sqs.attributes(url))["DelaySeconds"] == "7"


@pytest.mark.parametrize(
    "value",
    [b"{", b"{}", b"null", b'{"name":"x"}', b'{"attributes":{"VisibilityTimeout":"x"}}'],
)
async def test_an_unreadable_record_hides_no_queue(value: bytes) -> None:
    async with sqs_server() as sqs:
        url = await sqs.create("orders")
        stored = await SQS_QUEUES.read(sqs.store, "us-east-1/orders")
        assert stored is not None
        broken = Record(
            kind="sqs-queue", key="us-east-1/orders", value=value, version=stored.version
        )
        await sqs.store.save([broken])
        assert await sqs.names() == ["orders"]
        assert (await sqs.attributes(url))["VisibilityTimeout"] == "30"
        await sqs.ask("TagQueue", QueueUrl=url, Tags={"a": "b"})
        await sqs.ask("DeleteQueue", QueueUrl=url)


async def test_attributes_out_of_bounds_in_a_record_are_ignored(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    await SQS_QUEUES.update(
        sqs.store,
        "us-east-1/orders",
        lambda old: old and replace(old, attributes={"DelaySeconds": "999999999"}),
    )
    assert (await sqs.attributes(url))["DelaySeconds"] == "0"


async def test_counts_are_those_of_sqs(sqs: SqsClient) -> None:
    url = await sqs.create("orders", VisibilityTimeout="10")
    for delay in (0, 0, 0, 300):
        await sqs.ask("SendMessage", QueueUrl=url, MessageBody="x", DelaySeconds=delay)
    await sqs.ask("ReceiveMessage", QueueUrl=url)
    assert await counts(sqs, url) == (2, 1, 1)
    # The timeout has ended, though no reaper has seen it.
    sqs.clock.advance(10_000)
    assert await counts(sqs, url) == (3, 0, 1)
    assert (await sqs.store.tally(JobFilter(queue="orders"), "state", limit=9))[
        0
    ].value == "waiting"


async def test_counts_go_beyond_ten_thousand(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    for first in range(0, 11_000, 1_000):
        numbers = range(first, first + 1_000)
        await sqs.store.enqueue([NewJob(id=str(n), task="t", queue="orders") for n in numbers])
    assert await counts(sqs, url) == (11_000, 0, 0)


async def test_messages_behind_the_head_of_a_group_are_visible(sqs: SqsClient) -> None:
    url = await sqs.create("orders.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    for body in "abc":
        await sqs.ask("SendMessage", QueueUrl=url, MessageBody=body, MessageGroupId="g")
    await sqs.ask("ReceiveMessage", QueueUrl=url)
    assert await counts(sqs, url) == (2, 1, 0)


async def test_dead_letters_are_visible_in_their_queue(sqs: SqsClient) -> None:
    dead = await sqs.create("dead")
    policy = json.dumps({"deadLetterTargetArn": DLQ_ARN, "maxReceiveCount": 1})
    url = await sqs.create("orders", RedrivePolicy=policy, VisibilityTimeout="0")
    await sqs.ask("SendMessage", QueueUrl=url, MessageBody="x")
    for _ in range(2):
        await sqs.ask("ReceiveMessage", QueueUrl=url)
    assert await counts(sqs, url) == (0, 0, 0)
    assert await counts(sqs, dead) == (1, 0, 0)
    [job] = (await sqs.store.find(JobFilter(queue="dead"), limit=9)).jobs
    assert job.state is State.DEAD
    await sqs.ask("ReceiveMessage", QueueUrl=dead)
    assert await counts(sqs, dead) == (0, 1, 0)


async def test_dead_letters_are_counted_after_their_source_is_gone(sqs: SqsClient) -> None:
    dead = await sqs.create("dead")
    policy = json.dumps({"deadLetterTargetArn": DLQ_ARN, "maxReceiveCount": 1})
    url = await sqs.create("orders", RedrivePolicy=policy, VisibilityTimeout="0")
    await sqs.ask("SendMessage", QueueUrl=url, MessageBody="x")
    for _ in range(2):
        await sqs.ask("ReceiveMessage", QueueUrl=url)
    await sqs.ask("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert await counts(sqs, dead) == (1, 0, 0)
    await sqs.ask("DeleteQueue", QueueUrl=url)
    assert await counts(sqs, dead) == (1, 0, 0)


async def counts(sqs: SqsClient, url: str) -> tuple[int, ...]:
    shown = await sqs.attributes(url)
    names = ("", "NotVisible", "Delayed")
    return tuple(int(shown[f"ApproximateNumberOfMessages{name}"]) for name in names)


async def test_a_deleted_queue_stays_deleted_if_its_attributes_are_changed_meanwhile(
    sqs: SqsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropping a large queue takes a while."""
    url = await sqs.create("orders")
    sqs.clock.advance(1)
    change = queue_actions.apply_settings
    requests: list[asyncio.Task[Any]] = []
    is_saved, is_dropped = asyncio.Event(), asyncio.Event()

    async def apply_after_drop(*given: Any) -> None:
        is_saved.set()
        await is_dropped.wait()
        await change(*given)

    async def drop_meanwhile(*given: Any) -> None:
        attributes = {"VisibilityTimeout": "7"}
        setting = sqs.ask("SetQueueAttributes", QueueUrl=url, Attributes=attributes)
        requests.append(asyncio.create_task(setting))
        await is_saved.wait()
        await drop_queue(*given)
        is_dropped.set()
        await requests[0]

    monkeypatch.setattr(queue_actions, "apply_settings", apply_after_drop)
    monkeypatch.setattr(queue_actions, "drop_queue", drop_meanwhile)
    await sqs.ask("DeleteQueue", QueueUrl=url)
    assert await sqs.names() == []
    with pytest.raises(SqsRefused) as refused:
        await sqs.create("orders")
    assert refused.value.shape == "QueueDeletedRecently"
