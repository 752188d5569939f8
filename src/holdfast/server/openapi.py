"""The description of the API, OpenAPI 3.1, made of the operations' own types.

What it says is what the server checks: nothing here is written by hand but words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.server import idempotency
from holdfast.server.asking import body_may_be_empty
from holdfast.server.operations import JSON, Operation
from holdfast.server.problems import STATUS, Wrong, retry_s

Schema = dict[str, Any]

_SCHEMAS = "#/components/schemas/"
_RESPONSES = "#/components/responses/"
_PROBLEM = {"content": {JSON: {"schema": {"$ref": _SCHEMAS + "Wrong"}}}}
_BEARER = "bearer"

_ALWAYS = (400, 401, 403, 500, 501, 503, 504)
_WITH_BODY = (408, 413, 415, 422)
_CHANGING = (404, 409, 410, 422, 429, 507)

_WORDS = {
    400: "The request cannot be read, or is not as it is described here.",
    401: "There is no token, or none that is known.",
    403: "The token may not do this, or the request comes from a strange page.",
    404: "There is no such thing.",
    405: "The path takes other methods.",
    408: "The request did not arrive in time.",
    409: "It does not fit how things stand.",
    410: "It was there and is gone.",
    413: "It is larger than the server takes.",
    415: "The body is of another kind, or compressed.",
    422: "It can be read, and cannot be done: the text says why.",
    429: "There is too much of it: try again when there is room.",
    500: "The server failed; its log says more.",
    501: "The engine behind this server does not offer it.",
    503: "Nothing was changed: try again after the pause that is named.",
    504: "It took too long. With `outcome_unknown` it may have happened: repeat it as it was.",
    507: "The disk is at its floor.",
}


def document(operations: Sequence[Operation], *, is_open: bool = False) -> Schema:
    """`is_open`: a server that asks for no token."""
    types = _Types([each for each in operations if not each.internal])
    paths: dict[str, Schema] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(
            operation, types, is_open
        )
    statuses = sorted({int(code) for each in paths.values() for code in _bad_codes(each)})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "A durable work queue that holds every job fast until it is done.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": types.components,
            "responses": {str(status): _wrong(status) for status in statuses},
            "securitySchemes": {
                _BEARER: {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `holdfast token create`.",
                }
            },
        },
    }


class _Types:
    """Every type of the operations as a schema; a query's fields are parameters instead."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        wanted: list[Any] = [Wrong]
        for operation in operations:
            wanted += [operation.body] if operation.body is not None else []
            wanted += [operation.query] if operation.query is not None else []
            wanted += [operation.answer] if _is_described(operation) else []
            wanted += operation.path_types.values()
        schemas, components = msgspec.json.schema_components(
            wanted, ref_template=_SCHEMAS + "{name}"
        )
        self._known = {repr(each): schema for each, schema in zip(wanted, schemas, strict=True)}
        self._queries: dict[str, Schema] = {}
        for operation in operations:
            if operation.query is not None:
                name = self._known[repr(operation.query)]["$ref"].removeprefix(_SCHEMAS)
                self._queries[repr(operation.query)] = components[name]
        kept = {id(schema) for schema in self._queries.values()}
        self.components = {
            name: schema for name, schema in sorted(components.items()) if id(schema) not in kept
        }

    def of(self, wanted: Any) -> Schema:
        return self._known[repr(wanted)]

    def query(self, wanted: type[msgspec.Struct]) -> Schema:
        return self._queries[repr(wanted)]


def _is_described(operation: Operation) -> bool:
    return operation.answer is not bytes and operation.status != 204


def _described(operation: Operation, types: _Types, is_open: bool) -> Schema:
    summary = re.split(r"\.\s", operation.says, maxsplit=1)[0]
    found: Schema = {
        "operationId": operation.name,
        "tags": [tag_of(operation.path)],
        "summary": " ".join(summary.split()).rstrip("."),
        "description": _description(operation),
        "responses": _responses(operation, types),
    }
    if operation.internal:
        found["x-internal"] = True
        if operation.body is not None:
            found["requestBody"] = {"required": True, "content": {operation.content_type: {}}}
    else:
        if parameters := [*_parameters(operation, types)]:
            found["parameters"] = parameters
        if operation.body is not None:
            found["requestBody"] = {
                "required": not body_may_be_empty(operation),
                "content": {operation.content_type: {"schema": types.of(operation.body)}},
            }
    if operation.needs is not None:
        found["security"] = [{_BEARER: []}, *([{}] if is_open else [])]
        found["x-scope"] = operation.needs.value
    return found


def tag_of(path: str) -> str:
    """What an operation is about: the first word after the version."""
    found = re.match(r"/v\d+/([a-z-]+)(/|$)", path)
    return found[1] if found else "server"


def _description(operation: Operation) -> str:
    text = " ".join(operation.says.split()) or operation.name
    if operation.internal:
        text += " It may change with every version."
    if operation.needs is not None:
        text += f" Needs the scope `{operation.needs.value}`."
    return text


def _parameters(operation: Operation, types: _Types) -> Sequence[Schema]:
    found = [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(types.of(wanted))}
        for name, wanted in operation.path_types.items()
    ]
    if operation.query is not None:
        schema = types.query(operation.query)
        must = schema.get("required", [])
        for name, field in schema["properties"].items():
            found.append(
                {
                    "name": name,
                    "in": "query",
                    "required": name in must,
                    "schema": _without_null(field),
                }
            )
    if not operation.repeatable:
        found.append(
            {
                "name": idempotency.HEADER,
                "in": "header",
                "required": False,
                "description": "Repeating the request with the same key repeats only the answer.",
                "schema": {"type": "string", "pattern": idempotency.PATTERN},
            }
        )
    return found


def _path_schema(schema: Schema) -> Schema:
    return {**schema, "minLength": 1} if schema == {"type": "string"} else schema


def _without_null(schema: Schema) -> Schema:
    """What is not said in a query is left out."""
    found = {
        name: value for name, value in schema.items() if name != "default" or value is not None
    }
    if "anyOf" in found:
        rest = [each for each in found["anyOf"] if each != {"type": "null"}]
        if len(rest) == 1:
            del found["anyOf"]
            return {**rest[0], **found}
        found["anyOf"] = rest
    if isinstance(found.get("type"), list):
        found["type"] = [each for each in found["type"] if each != "null"]
    return found


def _responses(operation: Operation, types: _Types) -> Schema:
    good: Schema = {"description": "As asked."}
    if operation.internal:
        is_raw = operation.answer is bytes
        good["content"] = {operation.produces if is_raw else operation.content_type: {}}
    elif operation.answer is bytes:
        kind = "object" if operation.produces == JSON else "string"
        good["content"] = {operation.produces: {"schema": {"type": kind}}}
    elif operation.status != 204:
        good["content"] = {operation.content_type: {"schema": types.of(operation.answer)}}
    bad = set(_ALWAYS)
    if operation.path_names:
        bad.add(404)
    if operation.body is not None:
        bad.update(_WITH_BODY)
    if operation.query is not None or operation.path_names:
        bad.update((404, 422))
    if operation.method != "GET":
        bad.update(_CHANGING)
    if operation.needs is None:
        bad.discard(401)
    if operation.internal:
        return {str(operation.status): good, "default": {"description": "As for the others."}}
    return {
        str(operation.status): good,
        **{str(status): {"$ref": f"{_RESPONSES}{status}"} for status in sorted(bad)},
    }


def _bad_codes(path: Mapping[str, Schema]) -> set[str]:
    return {
        code
        for operation in path.values()
        for code, response in operation["responses"].items()
        if "$ref" in response
    }


def _wrong(status: int) -> Schema:
    codes = sorted(code for code, found in STATUS.items() if found == status)
    found: Schema = {
        "description": f"{_WORDS[status]} Codes: {', '.join(f'`{c}`' for c in codes)}."
    }
    headers: Schema = {}
    if any(retry_s(code) for code in codes):
        always = all(retry_s(code) for code in codes)
        headers["Retry-After"] = {"required": always, "schema": {"type": "integer", "minimum": 1}}
    if status == 401:
        headers["WWW-Authenticate"] = {"required": True, "schema": {"type": "string"}}
    if headers:
        found["headers"] = headers
    return {**found, **_PROBLEM}
