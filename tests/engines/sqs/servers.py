"""Servers for tests of the engine on SQS: emulators, each as a process of an environment of their
own, and a plain client for what no engine does."""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import boto3.session

from holdfast.conformance.private_server import ServiceUnavailable
from holdfast.testing.sqs import KEY, REGION
from tests import services
from tests.server.sqs.clients import environments

START_S_MAX = 60
SESSION = boto3.session.Session


@cache
def session() -> Any:
    """Reading the service model takes most of the time of a small test."""
    return SESSION(aws_access_key_id=KEY, aws_secret_access_key=KEY)


@cache
def client(endpoint: str) -> Any:
    """A plain boto3 client."""
    return session().client("sqs", region_name=REGION, endpoint_url=endpoint)


def create_queue(endpoint: str, name: str, **attributes: str) -> str:
    """Create a queue that nothing of Holdfast's has touched; its URL."""
    url: str = client(endpoint).create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url


@contextmanager
def running(name: str) -> Iterator[str]:
    """The URL of an emulator; the test is skipped where it cannot be installed."""
    with services.needed(f"The emulator {name}", "sqs-clients"):
        programs = environments.python_of("emulators").parent
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    commands = {
        "moto": ["moto_server", "--host", "127.0.0.1", "--port", str(port)],
        "ministack": ["ministack"],
    }
    program, *arguments = commands[name]
    kept = {key: text for key, text in os.environ.items() if not key.startswith("HOLDFAST_")}
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [str(programs / program), *arguments],
            cwd=folder,
            env={**kept, "GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "PYTHONPATH": ""},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_for(url, process)
            yield url
        finally:
            process.kill()
            process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S_MAX
    while True:
        try:
            urlopen(url, timeout=5).close()
        except HTTPError:
            return
        except (URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > end:
                raise ServiceUnavailable(f"{process.args!r} does not answer: {error}") from None
            time.sleep(0.1)
        else:
            return
