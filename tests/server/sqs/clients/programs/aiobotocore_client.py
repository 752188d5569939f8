"""Cancels long polls of aiobotocore. Arguments: the endpoint, and a part.

`waiting` cancels polls before anything is sent; it says so, waits for a line and then sends. The
messages must be received at once, for the first time. `storm` cancels polls while messages arrive;
every message must be received in the end.
"""

import asyncio
import random
import sys
from typing import Any

from aiobotocore.session import get_session


async def main(endpoint: str, part: str) -> None:
    client = get_session().create_client("sqs", endpoint_url=endpoint)
    async with client as sqs:
        await {"waiting": waiting, "storm": storm}[part](sqs)


async def waiting(sqs: Any) -> None:
    queue = await create(sqs, "cancelled", "600")
    polls = [poll(sqs, queue) for _ in range(5)]
    print("polling", flush=True)
    await next_line()
    await cancel(polls)
    print("cancelled", flush=True)
    await next_line()
    for number in range(5):
        await sqs.send_message(QueueUrl=queue, MessageBody=str(number))
    received: list[dict[str, Any]] = []
    while len(received) < 5:
        received += (await poll(sqs, queue))["Messages"]
    assert sorted(each["Body"] for each in received) == list("01234"), received
    counts = {each["Attributes"]["ApproximateReceiveCount"] for each in received}
    assert counts == {"1"}, counts


async def storm(sqs: Any) -> None:
    queue = await create(sqs, "storm", "1")
    chance = random.Random(seed := random.randrange(10**6))
    print("seed", seed, file=sys.stderr)
    wanted = {str(number) for number in range(30)}
    received = set[str]()
    for number in range(0, 30, 3):
        polls = [poll(sqs, queue) for _ in range(3)]
        entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(number, number + 3)]
        sending = asyncio.create_task(sqs.send_message_batch(QueueUrl=queue, Entries=entries))
        await asyncio.sleep(chance.random() / 50)
        received |= await cancel(polls)
        await sending
    while received != wanted:
        answer = await poll(sqs, queue)
        received |= {each["Body"] for each in answer.get("Messages", ())}
        assert received <= wanted, received


async def create(sqs: Any, name: str, visibility: str) -> Any:
    answer = await sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": visibility})
    return answer["QueueUrl"]


def poll(sqs: Any, queue: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(
        sqs.receive_message(
            QueueUrl=queue,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=20,
            AttributeNames=["ApproximateReceiveCount"],
        )
    )


async def cancel(polls: list[asyncio.Task[Any]]) -> set[str]:
    """Cancel the polls; return the bodies that had arrived before."""
    for each in polls:
        each.cancel()
    answers = await asyncio.gather(*polls, return_exceptions=True)
    arrived = [answer for answer in answers if isinstance(answer, dict)]
    return {each["Body"] for answer in arrived for each in answer.get("Messages", ())}


async def next_line() -> None:
    await asyncio.to_thread(sys.stdin.readline)


asyncio.run(main(*sys.argv[1:]))
