"""The Query protocol by the last boto3 that speaks it. Argument: the endpoint."""

import sys

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import ClientError

assert botocore.__version__ == "1.31.80", botocore.__version__
arguments = {
    "endpoint_url": sys.argv[1],
    "config": Config(retries={"total_max_attempts": 1}),
}
sqs = boto3.client("sqs", **arguments)
assert sqs.meta.service_model.metadata["protocol"] == "query"

# Queues: attributes, tags, listings and errors.
tags = {"team": "a&b", "empty": ""}
url = sqs.create_queue(QueueName="old", Attributes={"VisibilityTimeout": "77"}, tags=tags)[
    "QueueUrl"
]
assert url == f"{sys.argv[1]}/000000000000/old", url
found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
assert found["VisibilityTimeout"] == "77", found
assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == tags
assert sqs.list_queues(QueueNamePrefix="ol")["QueueUrls"] == [url]
try:
    sqs.get_queue_url(QueueName="missing")
except sqs.exceptions.QueueDoesNotExist as error:
    told = error.response["Error"]
else:
    told = {}
assert told.get("Code") == "AWS.SimpleQueueService.NonExistentQueue", told
assert told["Message"] == "The specified queue does not exist for this wsdl version.", told

# Messages: attributes of every type, control characters, batches with a bad entry.
queue = boto3.resource("sqs", **arguments).Queue(url)
body = "line\r\n\ttab <&> é \U0001f600"
attributes = {
    "s": {"DataType": "String.x", "StringValue": "ü"},
    "n": {"DataType": "Number", "StringValue": "-1.5e3"},
    "b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}
queue.send_message(MessageBody=body, MessageAttributes=attributes)
[message] = queue.receive_messages(AttributeNames=["All"], MessageAttributeNames=["All"])
assert message.body == body, message.body
assert message.message_attributes == attributes, message.message_attributes
assert message.attributes["ApproximateReceiveCount"] == "1", message.attributes
message.change_visibility(VisibilityTimeout=100)
message.delete()
answer = queue.send_messages(
    Entries=[{"Id": "good", "MessageBody": "1"}, {"Id": "bad", "MessageBody": "\u0001"}]
)
assert [each["Id"] for each in answer["Successful"]] == ["good"], answer
assert [each["Code"] for each in answer["Failed"]] == ["InvalidMessageContents"], answer
[message] = queue.receive_messages(MaxNumberOfMessages=10)
answer = queue.delete_messages(
    Entries=[
        {"Id": "good", "ReceiptHandle": message.receipt_handle},
        {"Id": "bad", "ReceiptHandle": "nonsense"},
    ]
)
assert [each["Id"] for each in answer["Successful"]] == ["good"], answer
assert [each["Code"] for each in answer["Failed"]] == ["ReceiptHandleIsInvalid"], answer
assert queue.receive_messages() == []

# FIFO.
fifo = boto3.resource("sqs", **arguments).create_queue(
    QueueName="old.fifo", Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"}
)
sent = [fifo.send_message(MessageBody=each, MessageGroupId="g") for each in "aab"]
assert sent[0]["MessageId"] == sent[1]["MessageId"], sent
assert sent[0]["SequenceNumber"] < sent[2]["SequenceNumber"], sent
assert [each.body for each in fifo.receive_messages(MaxNumberOfMessages=10)] == ["a", "b"]
try:
    fifo.send_message(MessageBody="c")
except ClientError as error:
    code = error.response["Error"]["Code"]
else:
    code = "none"
assert code == "MissingParameter", code
queue.delete()
