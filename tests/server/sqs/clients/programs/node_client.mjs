// The AWS SDK for JavaScript and sqs-consumer. Argument: the endpoint.
import assert from "node:assert/strict";
import {
  CreateQueueCommand, GetQueueAttributesCommand, GetQueueUrlCommand, QueueDoesNotExist,
  SendMessageBatchCommand, SendMessageCommand, ReceiveMessageCommand, SQSClient,
} from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const region = process.env.AWS_DEFAULT_REGION;
const sqs = new SQSClient({ endpoint: process.argv[2], region, maxAttempts: 1 });
const send = (Command, members) => sqs.send(new Command(members));

const { QueueUrl } = await send(CreateQueueCommand, { QueueName: "node" });
await assert.rejects(send(GetQueueUrlCommand, { QueueName: "missing" }), (error) => {
  assert.ok(error instanceof QueueDoesNotExist);
  assert.equal(error.Error.Code, "AWS.SimpleQueueService.NonExistentQueue");
  return true;
});

// The SDK compares the MD5s of bodies.
const attributes = { kind: { DataType: "String", StringValue: "ü" } };
await send(SendMessageCommand, { QueueUrl, MessageBody: "a\r\né", MessageAttributes: attributes });
const members = { QueueUrl, MessageAttributeNames: ["All"], VisibilityTimeout: 0 };
const { Messages } = await send(ReceiveMessageCommand, members);
assert.equal(Messages[0].Body, "a\r\né");
assert.deepEqual(Messages[0].MessageAttributes, attributes);

const Entries = [..."123456789"].map((Id) => ({ Id, MessageBody: Id }));
const { Successful } = await send(SendMessageBatchCommand, { QueueUrl, Entries });
assert.equal(Successful.length, 9);

// The consumer deletes the messages it has handled, and makes a failed one visible at once.
const handled = new Set();
let failures = 0;
await new Promise((resolve, reject) => {
  const consumer = Consumer.create({
    queueUrl: QueueUrl,
    sqs,
    batchSize: 10,
    waitTimeSeconds: 5,
    terminateVisibilityTimeout: true,
    handleMessage: async (message) => {
      if (message.Body === "5" && failures++ === 0) throw new Error("once");
      handled.add(message.Body);
      if (handled.size === 10) consumer.stop();
      return message;
    },
  });
  consumer.on("error", reject);
  consumer.on("stopped", resolve);
  consumer.start();
});
assert.equal(failures, 2);

// The consumer stops while it deletes its last messages.
for (;;) {
  const names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
  const { Attributes } = await send(GetQueueAttributesCommand, { QueueUrl, AttributeNames: names });
  if (names.every((name) => Attributes[name] === "0")) break;
}
sqs.destroy();
