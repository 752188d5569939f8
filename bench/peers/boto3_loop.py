"""A bare loop of boto3 on SQS: threads that receive ten messages, count them, and delete them.

It is the reference of workers on SQS, with a connection for each thread. Setting: `threads`.
"""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3.session
from botocore.config import Config

from bench.peers import program
from bench.peers.program import Arguments
from bench.peers.tally import Tally, payload

BATCH = 10
QUEUE = "bench-default"
_tally = cache(Tally)
_counting = threading.Lock()


def prepare(arguments: Arguments) -> None:
    _client(arguments).create_queue(QueueName=QUEUE)


def enqueue(arguments: Arguments) -> float:
    client, url = _client(arguments), _url(arguments)
    text = payload()
    started = time.perf_counter()
    for first in range(0, arguments.jobs, BATCH):
        size = min(BATCH, arguments.jobs - first)
        entries = [{"Id": str(number), "MessageBody": text} for number in range(size)]
        client.send_message_batch(QueueUrl=url, Entries=entries)
    return time.perf_counter() - started


def work(arguments: Arguments) -> None:
    client, url = _client(arguments), _url(arguments)

    def loop() -> None:
        while True:
            answer = client.receive_message(
                QueueUrl=url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=20
            )
            messages = answer.get("Messages", ())
            with _counting:
                for _ in messages:
                    _tally().ran()
            entries = [
                {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]}
                for number, each in enumerate(messages)
            ]
            if entries:
                client.delete_message_batch(QueueUrl=url, Entries=entries)

    threads = [threading.Thread(target=loop) for _ in range(arguments.settings["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def trickle(arguments: Arguments) -> None:
    client, url = _client(arguments), _url(arguments)
    for _ in program.steadily(arguments):
        client.send_message(QueueUrl=url, MessageBody=payload())


def _client(arguments: Arguments) -> Any:
    [endpoint] = parse_qs(urlsplit(arguments.place).query)["endpoint"]
    threads = arguments.settings["threads"]
    config = Config(max_pool_connections=threads, read_timeout=60)
    return boto3.session.Session().client(
        "sqs", region_name="us-east-1", endpoint_url=endpoint, config=config
    )


def _url(arguments: Arguments) -> str:
    url: str = _client(arguments).get_queue_url(QueueName=QUEUE)["QueueUrl"]
    return url


if __name__ == "__main__":
    program.main(prepare=prepare, enqueue=enqueue, work=work, trickle=trickle)
