"""The API description is exact: Schemathesis finds no difference, and would find one."""

import dataclasses
import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from holdfast import __version__
from holdfast.engines.wire import CONTENT_TYPE
from holdfast.server.access.admission import ApiCall
from holdfast.server.application import OPERATIONS
from holdfast.server.http import openapi
from holdfast.server.http.openapi import document, with_api_docs
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.http.problems import STATUS, InvalidRequest
from tests.docs.http import PAGE, kinds, with_reference
from tests.server.asgi_client import AsgiClient
from tests.server.fuzz import EXCLUDED, VERBS, fuzz
from tests.server.sample_api import serve

SHARE = 8
"""One of so many operations is tested in a default run. All: HOLDFAST_EXAMPLES=3 ./hf test FILE"""
EXAMPLES = os.environ.get("HOLDFAST_EXAMPLES")
PATHS = sorted({each.path for each in OPERATIONS} - EXCLUDED - set(VERBS))


@pytest.mark.timeout(900)
async def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    """Requests are made from the types of the operations, with paths about the same things. Those
    of the engine are in MessagePack. In one run, because each has to be started."""
    paths = [*PATHS, *VERBS] if EXAMPLES else [*a_share(PATHS), *a_share(VERBS)]
    examples = int(EXAMPLES or 3)
    code, said = await fuzz(tmp_path, only=paths, examples=examples)
    assert code == 0, f"{said}\npython -m tests.server.fuzz SEED {examples} {' '.join(paths)}"


def a_share(paths: list[str]) -> list[str]:
    """Neighbours, so that some are about the same things."""
    size = -(-len(paths) // SHARE)
    at = random.randrange(SHARE) * size
    return paths[at : at + size]


class Answer(Struct):
    count: int


class Asked(Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=0, le=9)]


@operation("POST", "/v1/right", needs=Scope.OPERATE, repeatable=True)
async def right(call: ApiCall, body: Asked) -> Answer:
    """Its answer has the declared type."""
    return Answer(body.count)


@operation("POST", "/v1/wrong-answer", needs=Scope.OPERATE, repeatable=True)
async def wrong_answer(call: ApiCall, body: Asked) -> Answer:
    """Its answer is another than it says."""
    return {"count": str(body.count)}  # type: ignore[return-value]


@operation("POST", "/v1/too-strict", needs=Scope.OPERATE, repeatable=True)
async def too_strict(call: ApiCall, body: Asked) -> Answer:
    """It takes less than it says."""
    if body.count > 5:
        raise InvalidRequest("that is too much")
    return Answer(body.count)


@operation("POST", "/v1/broken", needs=Scope.OPERATE, repeatable=True)
async def broken(call: ApiCall, body: Asked) -> Answer:
    """It fails at times."""
    return Answer(1 // body.count)


@operation("GET", "/v1/unguarded", needs=None)
async def unguarded(call: ApiCall) -> Answer:
    """It says that it needs a token, and asks for none."""
    return Answer(1)


def as_verb(given: Operation) -> Operation:
    """The same in MessagePack."""
    path = given.path.replace("/v1/", "/v1/verb-")
    return dataclasses.replace(
        given, path=path, name=f"verb_{given.name}", content_type=CONTENT_TYPE, internal=True
    )


FAULTS = {
    "POST /v1/right": None,
    "POST /v1/wrong-answer": "Response violates schema",
    "POST /v1/too-strict": "Schema-valid request rejected",
    "POST /v1/broken": "Server error",
    "GET /v1/unguarded": "accepts requests without authentication",
    "POST /v1/verb-right": None,
    "POST /v1/verb-wrong-answer": "Response violates schema",
    "POST /v1/verb-broken": "Server error",
}


@pytest.mark.timeout(300)
async def test_schemathesis_finds_a_defect(tmp_path: Path) -> None:
    """In one run, because each has to be started and to think first. The last is served without a
    token, and described as if it needed one."""
    shown = with_api_docs(
        (
            right,
            wrong_answer,
            too_strict,
            broken,
            *map(as_verb, (right, wrong_answer, broken)),
            dataclasses.replace(unguarded, needs=(Scope.OPERATE,)),
        )
    )
    served = tuple(unguarded if each.path == unguarded.path else each for each in shown)
    paths = [each.partition(" ")[2] for each in FAULTS]
    code, said = await fuzz(tmp_path, operations=served, shown=shown, only=paths, examples=20)
    assert code == 1, said
    parts = re.split(r"^_+ (\w+ /\S+) _+$", said.partition("= SUMMARY =")[0], flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert set(found) == {name for name, fault in FAULTS.items() if fault}, said
    for name, text in found.items():
        assert FAULTS[name] in text, said


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for each in schema.values():
            yield from references(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from references(each)


def test_every_operation_is_described_and_every_reference_resolves() -> None:
    found = document(OPERATIONS)
    shown = {
        (method.upper(), path) for path, methods in found["paths"].items() for method in methods
    }
    assert shown == {(each.method, each.path) for each in OPERATIONS}
    names = [
        each["operationId"] for methods in found["paths"].values() for each in methods.values()
    ]
    assert len(set(names)) == len(names)
    for reference in references(found):
        place: Any = found
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
    used = set(references(found))
    unused = [
        name
        for name in found["components"]["schemas"]
        if f"#/components/schemas/{name}" not in used
    ]
    assert unused == []


def test_every_operation_has_a_description() -> None:
    assert [each.path for each in OPERATIONS if not each.description] == []


def test_operations_that_change_state_need_a_scope() -> None:
    """Operations without a scope change nothing; signing in and out needs none."""
    assert [each.path for each in OPERATIONS if each.needs is None and each.changes] == []
    unsafe = [each.path for each in OPERATIONS if each.needs is None and each.method != "GET"]
    assert unsafe == ["/v1/session"] * 2


def test_inputs_refuse_unknown_fields() -> None:
    found = document(OPERATIONS)
    loose = []
    for path, methods in found["paths"].items():
        for method, each in methods.items():
            for content in each.get("requestBody", {}).get("content", {}).values():
                name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
                schema = found["components"]["schemas"].get(name, {})
                if not each.get("x-internal") and schema.get("additionalProperties") is not False:
                    loose.append(f"{method} {path}")
    assert loose == []


def test_every_error_has_a_status() -> None:
    assert sorted({kind.code for kind in kinds()} - set(STATUS)) == []


def test_the_reference_is_current() -> None:
    text = PAGE.read_text()
    assert text == with_reference(text), "run: .venv/bin/python -m tests.docs.http"


async def test_the_description_and_its_page_need_no_token() -> None:
    client, _ = serve(*OPERATIONS, auth=True)
    said = await client.ask("GET", "/v1/openapi.json")
    assert said.status == 200
    assert said.json["openapi"] == "3.1.0"
    assert {"bearer": []} in said.json["paths"]["/v1/lease"]["post"]["security"]
    page = await client.ask("GET", "/v1/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    # Everything that the page asks for is here.
    sources = re.findall(r'(?:src|href|spec-url)="([^"]+)"', page.body.decode())
    assert sources
    for source in sources:
        assert not source.startswith(("http", "//"))
        if source.startswith("data:") or source == "../":  # an icon, and the dashboard
            continue
        assert (await AsgiClient(client.application).ask("GET", f"/v1/{source}")).status == 200


async def test_the_commands_of_the_landing_page_work() -> None:
    client, state = serve(*OPERATIONS)
    await state.app.open()
    page = (await client.ask("GET", "/v1/docs")).body.decode()
    assert f"Version {__version__}." in page
    commands = re.findall(r"curl \$URL(\S+) -H \"\$AUTH\" --json \\\n  '(.*)'", page)
    assert [path for path, _ in commands] == [
        "/v1/queues/default/jobs",
        "/v1/lease",
        "/v1/settle",
    ]
    token, answers = "", []
    for path, body in commands:
        sent = body.replace("TOKEN", token).encode()
        asked = await AsgiClient(client.application).ask("POST", path, sent)
        assert asked.status in (200, 201), asked.body
        answers.append(asked.json)
        if path == "/v1/lease":
            token = str(asked.json["leases"][0]["token"])
    assert answers[-1]["outcomes"][0]["outcome"] == "settled"


class Nullable(Struct):
    text: str | None = None
    bounded: Annotated[str, Meta(max_length=9, description="Text.")] | None = None
    choice: Literal["a", "b"] | None = None
    mixed: Annotated[float, Meta(ge=0)] | Annotated[str, Meta(pattern="^x")] | None = None
    texts: list[str] | None = None
    inner: Answer | None = None


def test_nullable_fields_are_one_type() -> None:
    """A viewer shows a list of types in one line, and a choice of schemas as a tree."""

    @operation("POST", "/v1/nullable", needs=Scope.OPERATE)
    async def nullable(call: ApiCall, body: Nullable) -> Answer:
        """Say nothing."""
        raise NotImplementedError

    found = document([nullable])["components"]["schemas"]["Nullable"]["properties"]
    assert found["text"] == {"type": ["string", "null"], "default": None}
    assert found["bounded"] == {
        "type": ["string", "null"],
        "maxLength": 9,
        "description": "Text.",
        "default": None,
    }
    assert found["choice"] == {
        "type": ["string", "null"],
        "enum": ["a", "b", None],
        "default": None,
    }
    assert found["mixed"] == {
        "type": ["number", "string", "null"],
        "minimum": 0,
        "pattern": "^x",
        "default": None,
    }
    # Bounds of lists and fields of objects cannot be beside those of null: viewers show a choice.
    assert [len(found[name]["anyOf"]) for name in ("texts", "inner")] == [2, 2]


def test_a_query_has_no_null() -> None:
    for methods in document(OPERATIONS)["paths"].values():
        for each in methods.values():
            for parameter in each.get("parameters", []):
                schema = parameter["schema"]
                assert "null" not in schema.get("type", ())
                assert None not in schema.get("enum", ())


def test_a_field_has_one_example() -> None:
    """The API page joins several to one text: 30s5m."""

    described = json.dumps(document(OPERATIONS))
    found = [json.loads(each) for each in re.findall(r'"examples": (\[.*?\])', described)]
    assert len(found) > 10
    assert [each for each in found if len(each) > 1] == []


def test_third_party_files_have_their_licence() -> None:
    folder = Path(openapi.__file__).parents[1] / "static"
    scripts = sorted(folder.glob("*.js"))
    assert scripts
    for script in scripts:
        licence = folder / f"{script.name.partition('.')[0]}.LICENSE.txt"
        assert "Apache License" in licence.read_text()


async def test_an_open_server_describes_that_no_token_is_needed() -> None:
    client, _ = serve(*OPERATIONS)
    said = await client.ask("GET", "/v1/openapi.json")
    assert {} in said.json["paths"]["/v1/lease"]["post"]["security"]
