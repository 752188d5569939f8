"""Schemathesis against a server's own description, with all its checks, on SQLite."""

import asyncio
import random
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from holdfast.app.application import Holdfast
from holdfast.core import bounds
from holdfast.ops.tokens import TokenRequest
from holdfast.server.access.caller import GRANTABLE
from holdfast.server.application import OPERATIONS, AsgiApplication
from holdfast.server.http.operation import Operation
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState

# A valid request that the store refuses is 422; an invalid request never is. A batch is answered
# with 201 and an id for each of its jobs, also for one that was refused and so does not exist.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429"]

[[operations]]
include-path-regex = "^/v1/(jobs|batches)/[{]id[}]"
[operations.checks.ensure_resource_availability]
enabled = false
"""
_ST = "from schemathesis.cli import schemathesis; schemathesis()"
# Streams never end, and the verbs are in MessagePack, which it does not speak.
EXCLUDED = {each.path for each in OPERATIONS if each.streams or each.internal}


async def fuzz(
    folder: Path,
    *,
    operations: tuple[Operation, ...] = OPERATIONS,
    only: Sequence[str] = (),
    examples: int = 20,
    seed: int | None = None,
) -> tuple[int, str]:
    """The exit code and the output, with the seed."""
    seed = random.randrange(2**32) if seed is None else seed
    (folder / "schemathesis.toml").write_text(CONFIG)
    app = Holdfast(f"sqlite:///{folder}/jobs.db")
    listening = socket.create_server(("127.0.0.1", 0))
    settings = ServerSettings(auth=True, wait_ms_max=bounds.SECOND_MS // 10)
    async with app:
        server = ServerState(app=app, settings=settings)
        text, _ = await server.tokens.create(TokenRequest(name="fuzz", scopes=tuple(GRANTABLE)))
        config = uvicorn.Config(
            AsgiApplication(server, operations), log_config=None, lifespan="off", access_log=False
        )
        web = uvicorn.Server(config)
        running = asyncio.create_task(web.serve([listening]))
        try:
            return await _run(folder, listening.getsockname()[1], text, (seed, examples, only))
        finally:
            web.should_exit = True
            await running


async def _run(
    folder: Path, port: int, token: str, how: tuple[int, int, Sequence[str]]
) -> tuple[int, str]:
    seed, examples, only = how
    url = f"http://127.0.0.1:{port}"
    chosen = [f"--include-path={path}" for path in only] or [
        f"--exclude-path={path}" for path in sorted(EXCLUDED)
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _ST, "--config-file", "schemathesis.toml", "run"),
        *(f"{url}/v1/openapi.json", "--url", url, "--header", f"Authorization: Bearer {token}"),
        *("--seed", str(seed), "--max-examples", str(examples)),
        *("--no-color", "--continue-on-failure", "--generation-database", "none"),
        *chosen,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, f"seed {seed}\n{said.decode()}"


def main() -> None:
    """`python -m tests.server.fuzz SEED EXAMPLES [PATH…]`: one run, with its seed."""
    import tempfile

    seed, examples, *only = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        code, said = asyncio.run(
            fuzz(Path(folder), seed=int(seed), examples=int(examples), only=only)
        )
    print(said)
    sys.exit(code)


if __name__ == "__main__":
    main()
