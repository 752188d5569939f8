"""Schemathesis against a server's own description, with all its checks, on SQLite."""

import asyncio
import dataclasses
import os
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from msgspec.structs import replace

from holdfast.app.application import Holdfast
from holdfast.core import bounds
from holdfast.core.model import (
    Failure,
    FailureKind,
    JobFilter,
    LeaseRequest,
    NewJob,
    Note,
    Queue,
    Reason,
    Record,
    State,
)
from holdfast.core.verdict import (
    Bury,
    Cancel,
    Complete,
    Delete,
    Edit,
    Forward,
    Move,
    Redrive,
    Release,
    Retry,
)
from holdfast.engines import wire
from holdfast.engines.wire import CONTENT_TYPE
from holdfast.ops.tokens import TokenRequest
from holdfast.server.access.caller import GRANTABLE
from holdfast.server.application import OPERATIONS, AsgiApplication
from holdfast.server.http.openapi import document
from holdfast.server.http.operation import Operation
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState
from tests.server.msgpack_media import BYTES, to_json

# A valid request that the store refuses is 422; an invalid request never is. A batch is answered
# with 201 and an id for each of its jobs, also for one that was refused and so does not exist.
_SCHEMAS = "#/components/schemas/"
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429"]

[[operations]]
include-path-regex = "^/v1/(jobs|batches)/[{]id[}]"
[operations.checks.ensure_resource_availability]
enabled = false
"""
_ST = "import tests.server.msgpack_media; from schemathesis.cli import schemathesis; schemathesis()"
_ROOT = Path(__file__).parents[2]
VERBS = sorted(each.path for each in OPERATIONS if each.content_type == CONTENT_TYPE)
# Streams never end, and pages about the API are not part of it.
EXCLUDED = {
    each.path for each in OPERATIONS if each.streams or (each.internal and each.path not in VERBS)
}

_HELD = wire.SentLease("a", 1, 30_000, "default", "t")
_JOB = NewJob(id="a", task="t", payload=b"{}", labels={"a": "b"}, headers={"a": "b"})
_EXAMPLES: dict[str, tuple[msgspec.Struct, ...]] = {
    "declare": (wire.DeclareCall(Queue(name="mail", dead_queue="default")),),
    "enqueue": (wire.EnqueueCall([_JOB, replace(_JOB, id="b", after=("a",), key="k")]),),
    "lease": (
        wire.LeaseCall(LeaseRequest(queues=("default",), limit=2)),
        wire.LeaseCall(LeaseRequest(ids=("a", "b"), limit=2)),
    ),
    "renew": (wire.RenewCall([wire.SentRenewal(_HELD, 1_000, Note(progress=0.5, output=b"out"))]),),
    "settle": tuple(
        wire.SettleCall([wire.SentSettlement(_HELD, verdict)])
        for verdict in (
            Complete(b"1", then=(replace(_JOB, id="c"),)),
            Retry(delay_ms=1, failure=Failure(kind=FailureKind.ERROR, message="m")),
            Bury(reason=Reason.ATTEMPTS),
            Release("r"),
            Forward("mail"),
        )
    ),
    "amend": tuple(
        wire.AmendCall(JobFilter(queue="default"), act, 10)
        for act in (
            Cancel(by="me"),
            Redrive(by="me"),
            Edit(priority=1),
            Delete(),
            Move(queue="mail"),
        )
    ),
    "find": (wire.FindCall(JobFilter(states=(State.WAITING,), search="a"), 10),),
    "tally": (wire.TallyCall(JobFilter(queue="default"), "task", 10),),
    "flow": (wire.FlowCall("default", 10),),
    "get": (wire.IdCall("a"),),
    "waits": (wire.IdCall("b"),),
    "load": (wire.LoadCall("note", 10),),
    "save": (wire.SaveCall([Record(kind="note", key="a", value=b"1")]),),
    **{verb: (wire.LimitCall(10),) for verb in ("overdue", "expired", "finished", "recount")},
}
"""Calls that reach jobs, which made-up names do not."""


def described(operations: tuple[Operation, ...]) -> dict[str, Any]:
    """The description of the API, and that of the engine's verbs, which are internal and not in
    the public one."""
    verbs = {each.path for each in operations if each.content_type == CONTENT_TYPE}
    shown = [dataclasses.replace(each, internal=False) for each in operations if each.path in verbs]
    found = document(tuple(each for each in operations if each.path not in verbs))
    apart = document(tuple(shown))
    names = {name: f"Msgpack{name}" for name in apart["components"]["schemas"]}
    for name, schema in apart["components"]["schemas"].items():
        found["components"]["schemas"][names[name]] = _in_msgpack(schema, names)
    for path in verbs:
        found["paths"][path] = apart["paths"][path]
        for each in found["paths"][path].values():
            each["responses"] = {
                code: _answer(apart["components"]["responses"].get(code, said), names)
                for code, said in each["responses"].items()
            }
            if "requestBody" in each:
                each["requestBody"]["required"] = True
                content = each["requestBody"]["content"][CONTENT_TYPE]
                content["schema"] = _in_msgpack(content["schema"], names)
                content["examples"] = _examples(path.rpartition("/")[2])
    return found


def _examples(verb: str) -> dict[str, Any]:
    calls = [msgspec.to_builtins(each, builtin_types=(bytes,)) for each in _EXAMPLES.get(verb, ())]
    return {f"{verb} {at}": {"value": to_json(call)} for at, call in enumerate(calls)}


def _answer(said: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    [content] = said["content"].values()
    return {**said, "content": {CONTENT_TYPE: {"schema": _in_msgpack(content["schema"], names)}}}


def _in_msgpack(schema: Any, names: Mapping[str, str]) -> Any:
    """The schema of a value in MessagePack, which has bytes, and integers of 64 bits."""
    if isinstance(schema, list):
        return [_in_msgpack(each, names) for each in schema]
    if isinstance(schema, str) and schema.startswith(_SCHEMAS):
        name = schema.removeprefix(_SCHEMAS)
        return f"{_SCHEMAS}{names.get(name, name)}"
    if not isinstance(schema, dict):
        return schema
    if schema.get("contentEncoding") == "base64":
        coded = {"type": "string", "format": BYTES}
        # As a choice: Schemathesis ignores the format beside a list of types.
        return {"anyOf": [coded, {"type": "null"}]} if "null" in schema["type"] else coded
    found = {name: _in_msgpack(each, names) for name, each in schema.items()}
    if "limit" in found.get("properties", {}):
        found["properties"]["limit"] |= {"minimum": 1, "maximum": bounds.PAGE_MAX}
    if "integer" in found.get("type", ()):
        found = {"minimum": -(2**63), "maximum": 2**64 - 1, **found}
    return found


async def fuzz(
    folder: Path,
    *,
    operations: tuple[Operation, ...] = OPERATIONS,
    shown: tuple[Operation, ...] | None = None,
    only: Sequence[str] = (),
    examples: int = 20,
    seed: int | None = None,
) -> tuple[int, str]:
    """The exit code and the output, with the seed. `shown` are the operations as described, if they
    are described wrongly."""
    seed = random.randrange(2**32) if seed is None else seed
    (folder / "schemathesis.toml").write_text(CONFIG)
    (folder / "openapi.json").write_bytes(msgspec.json.encode(described(shown or operations)))
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
        *("openapi.json", "--url", url, "--header", f"Authorization: Bearer {token}"),
        *("--seed", str(seed), "--max-examples", str(examples)),
        *("--no-color", "--continue-on-failure", "--generation-database", "none"),
        *chosen,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
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
