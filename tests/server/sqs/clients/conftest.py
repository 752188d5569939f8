"""A server on SQLite, which requires signatures, one on PostgreSQL, which requires none, and the
programs of real clients."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from holdfast.app.application import Holdfast
from holdfast.ops.tokens import TokenRequest, Tokens
from holdfast.process import wall_ms
from holdfast.server.application import AsgiApplication
from holdfast.server.settings import ServerSettings
from holdfast.server.sqs.receive import message_state_of
from holdfast.server.state import ServerState
from tests import services
from tests.server.loop_server import LoopServer
from tests.server.sqs.clients import environments
from tests.wait import wait_until

PROGRAMS = environments.PINS / "programs"
VARIABLES = {
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True)
class Endpoint:
    app: Holdfast
    url: str
    folder: Path
    key_id: str = "test"
    secret: str = "test"

    async def until_polling(self, count: int) -> None:
        """Wait until so many long polls wait."""
        polls = message_state_of(self.app).polls
        await asyncio.to_thread(wait_until, lambda: polls.waiting == count)

    async def run(self, program: Path | str, *arguments: str) -> None:
        """Run a program, which fails if anything is not as it should be."""
        async with self.started(program, *arguments) as process:
            out, err = await process.communicate()
        assert process.returncode == 0, (out + err).decode(errors="replace")

    @asynccontextmanager
    async def started(
        self, program: Path | str, *arguments: str, **variables: str
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        key = {"AWS_ACCESS_KEY_ID": self.key_id, "AWS_SECRET_ACCESS_KEY": self.secret}
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            cwd=self.folder,
            env={**kept, **VARIABLES, **key, **variables},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            # Reads the pipes to their end: a loop that closes before complains.
            await process.communicate()

    def resource(self) -> Any:
        """The resource of boto3, without retries, which hide failures."""
        return boto3.session.Session().resource(
            "sqs",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=self.key_id,
            aws_secret_access_key=self.secret,
            config=Config(retries={"total_max_attempts": 1}),
        )


@pytest.fixture(params=["sqlite", "postgres"])
async def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Endpoint]:
    is_signed = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/sqs.db" if is_signed else request.getfixturevalue("pg_url")
    async with Holdfast(url) as app:
        server = LoopServer()
        settings = ServerSettings(auth=is_signed)
        server.only_app = AsgiApplication(ServerState(app=app, settings=settings))
        found = Endpoint(app, server.place, tmp_path)
        if is_signed:
            wanted = TokenRequest(name="clients", scopes=("admin",), aws=True)
            secret, key = await Tokens(lambda: app.engine, wall_ms).create(wanted)
            found = replace(found, key_id=key.id, secret=secret)
        stop = asyncio.Event()
        upkeep = asyncio.create_task(app.upkeep().run(stop))
        async with server.running():
            yield found
        stop.set()
        await upkeep


@pytest.fixture(scope="session")
def current_python() -> Path:
    """The Python that has aiobotocore, Celery and the AWS CLI."""
    return _installed(lambda: environments.python_of("current"))


@pytest.fixture(scope="session")
def query_python() -> Path:
    """The Python that has the last boto3 of the Query protocol."""
    return _installed(lambda: environments.python_of("query"))


@pytest.fixture(scope="session")
def node_packages() -> Path:
    """The folder in which Node finds the AWS SDK."""
    return _installed(environments.node_folder)


def _installed(install: Callable[[], Path]) -> Path:
    with services.needed("A client of SQS", "sqs-clients"):
        return install()
    raise AssertionError("a missing client ends the test")
