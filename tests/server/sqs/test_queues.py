"""Actions on queues: the record and the settings of the queue, names, races and the 60 s rules."""

import pytest

from tests.server.sqs.sqs_client import ACCOUNT, BASE, SqsClient, SqsRefused


async def test_a_queue_is_created_found_listed_and_deleted(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    assert url == f"{BASE}/{ACCOUNT}/orders"
    assert await sqs.ask("GetQueueUrl", QueueName="orders") == {"QueueUrl": url}
    assert await sqs.names() == ["orders"]
    await sqs.ask("DeleteQueue", QueueUrl=url)
    assert await sqs.ask("ListQueues") == {}
    with pytest.raises(SqsRefused) as refused:
        await sqs.ask("GetQueueUrl", QueueName="orders")
    assert refused.value.code == "AWS.SimpleQueueService.NonExistentQueue"
    assert await sqs.store.queues(names=["orders"]) == []
