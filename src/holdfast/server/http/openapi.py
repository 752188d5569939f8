"""The OpenAPI 3.1 description of the API, made of the operations' own types, and its viewer.

The server checks requests by the same types, so the description is exact. The viewer is OpenAPI
Explorer, a single file stored with its licence, in the page `static/docs.html`; it loads nothing
from other hosts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from holdfast import __version__
from holdfast.server.access.admission import ApiCall
from holdfast.server.access.caller import Scope
from holdfast.server.http import idempotency
from holdfast.server.http.operation import JSON, Operation, operation
from holdfast.server.http.problems import STATUS, ErrorBody, retry_s
from holdfast.server.http.request import body_may_be_empty

Schema = dict[str, Any]

_SCHEMAS = "#/components/schemas/"
_RESPONSES = "#/components/responses/"
_PROBLEM = {"content": {JSON: {"schema": {"$ref": _SCHEMAS + "ErrorBody"}}}}
_BEARER = "bearer"
_PLAIN = {"string", "number", "integer", "boolean", "null"}

_ALWAYS = (400, 401, 403, 500, 501, 503, 504)
_WITH_BODY = (408, 413, 415, 422)
_CHANGING = (404, 409, 410, 422, 429, 507)

_STATUS_TEXTS = {
    400: "The request cannot be parsed, or does not match this description.",
    401: "The token is missing or unknown.",
    403: "The token does not allow this, or the request comes from a web page that is not allowed.",
    404: "Not found.",
    405: "The path does not allow this method.",
    408: "The request did not arrive in time.",
    409: "The request conflicts with the current state.",
    410: "The resource existed and was deleted.",
    413: "The request is too large.",
    415: "The body has the wrong content type, or is compressed.",
    422: "The request is well-formed but cannot be carried out: the message says why.",
    429: "The queue is full or a quota is exceeded: try again later.",
    500: "The server failed: see its log.",
    501: "The engine behind this server does not support this.",
    503: "Nothing was changed: try again after the time in `Retry-After`.",
    504: "The request took too long. With `outcome_unknown` it may have taken effect: repeat it.",
    507: "The disk is full.",
}


def document(operations: Sequence[Operation], *, is_open: bool = False) -> Schema:
    """The description of these operations. `is_open`: the server needs no token."""
    types = _Types([each for each in operations if not each.internal])
    paths: dict[str, Schema] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _described(each, types, is_open)
    statuses = sorted({int(code) for each in paths.values() for code in _error_statuses(each)})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "A durable work queue that keeps every job until it is done.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": types.components,
            "responses": {str(status): _error_response(status) for status in statuses},
            "securitySchemes": {
                _BEARER: {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token from `holdfast token create`.",
                }
            },
        },
    }


class _Types:
    """The schemas of all types of the operations. Fields of queries become parameters instead."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        wanted: list[Any] = [ErrorBody]
        for each in operations:
            wanted += [each.body] if each.body is not None else []
            wanted += [each.query] if each.query is not None else []
            wanted += [each.answer] if _is_described(each) else []
            wanted += each.path_types.values()
        made = msgspec.json.schema_components(wanted, ref_template=_SCHEMAS + "{name}")
        schemas, components = _simplified(made)
        self._known: dict[str, Schema] = {
            repr(each): schema for each, schema in zip(wanted, schemas, strict=True)
        }
        self._queries: dict[str, Schema] = {}
        for each in operations:
            if each.query is not None:
                name = self._known[repr(each.query)]["$ref"].removeprefix(_SCHEMAS)
                self._queries[repr(each.query)] = components[name]
        kept = {id(schema) for schema in self._queries.values()}
        self.components = {
            name: schema for name, schema in sorted(components.items()) if id(schema) not in kept
        }

    def of(self, wanted: Any) -> Schema:
        return self._known[repr(wanted)]

    def query(self, wanted: type[msgspec.Struct]) -> Schema:
        return self._queries[repr(wanted)]


def _simplified(value: Any) -> Any:
    """The same schemas, with a choice of plain types as one schema with a list of types, such as
    `"type": ["string", "null"]`: viewers show that as a type, and a choice as a tree."""
    if isinstance(value, list | tuple):
        return [_simplified(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = _with_type({name: _simplified(each) for name, each in value.items()})
    choices = found.get("anyOf", [])
    if not choices or not _can_be_one(choices):
        return found
    merged: Schema = {"type": [each["type"] for each in choices]}
    for each in choices:
        for name, part in each.items():
            if name == "enum":
                # Null is the only other choice: see `_can_be_one`.
                merged[name] = [*part, None]
            elif name == "description" and name in merged:
                merged[name] += f" {part}"
            elif name != "type":
                merged.setdefault(name, part)
    return {**merged, **{name: each for name, each in found.items() if name != "anyOf"}}


def _with_type(schema: Schema) -> Schema:
    """msgspec leaves out the type of an enumeration."""
    values = schema.get("enum")
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        return schema
    return {"type": "string", **schema}


def _can_be_one(choices: Sequence[Schema]) -> bool:
    """Whether every bound of a choice applies to its own type alone."""
    kinds = [each.get("type") for each in choices]
    if len(set(map(str, kinds))) < len(kinds) or not {*map(str, kinds)} <= _PLAIN:
        return False
    if any("const" in each for each in choices):
        return False
    return set(kinds) == {"string", "null"} or not any("enum" in each for each in choices)


def _is_described(operation: Operation) -> bool:
    return operation.answer is not bytes and operation.status != 204


def _described(operation: Operation, types: _Types, is_open: bool) -> Schema:
    summary = re.split(r"\.\s", operation.description, maxsplit=1)[0]
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
        found["x-scope"] = " or ".join(scope.value for scope in operation.needs)
    return found


def tag_of(path: str) -> str:
    """The tag of an operation: the first segment of its path after the version."""
    found = re.match(r"/v\d+/([a-z-]+)(/|$)", path)
    return found[1] if found else "server"


def _description(operation: Operation) -> str:
    text = " ".join(operation.description.split()) or operation.name
    if operation.internal:
        text += " Internal: may change with every version."
    needs = operation.needs
    if needs is not None and Scope.KNOWN in needs:
        text += " Needs a token with any scope."
    elif needs is not None:
        text += f" Needs the scope {' or '.join(f'`{scope.value}`' for scope in needs)}."
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
                "description": "A repeated request with the same key gets the first answer again.",
                "schema": {"type": "string", "pattern": idempotency.PATTERN},
            }
        )
    return found


def _path_schema(schema: Schema) -> Schema:
    return {**schema, "minLength": 1} if schema == {"type": "string"} else schema


def _without_null(schema: Schema) -> Schema:
    """The schema without null: a query parameter without a value is left out."""
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
        rest = [each for each in found["type"] if each != "null"]
        found["type"] = rest[0] if len(rest) == 1 else rest
    if "enum" in found:
        found["enum"] = [each for each in found["enum"] if each is not None]
    return found


def _responses(operation: Operation, types: _Types) -> Schema:
    good: Schema = {"description": "Success."}
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
    if operation.needs is None and operation.body is None:
        bad.discard(401)
    if operation.internal:
        return {str(operation.status): good, "default": {"description": "An error."}}
    return {
        str(operation.status): good,
        **{str(status): {"$ref": f"{_RESPONSES}{status}"} for status in sorted(bad)},
    }


def _error_statuses(path: Mapping[str, Schema]) -> set[str]:
    return {
        code
        for operation in path.values()
        for code, response in operation["responses"].items()
        if "$ref" in response
    }


def _error_response(status: int) -> Schema:
    codes = sorted(code for code, found in STATUS.items() if found == status)
    found: Schema = {
        "description": f"{_STATUS_TEXTS[status]} Codes: {', '.join(f'`{c}`' for c in codes)}."
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


_STATIC = Path(__file__).parents[1] / "static"
_SCRIPT = "openapi-explorer.min.js"
_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    # The viewer sets inline styles.
    "style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def with_api_docs(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """These operations, and those that describe them: openapi.json and the viewer."""

    @operation("GET", "/v1/openapi.json", needs=None)
    async def openapi(call: ApiCall) -> Annotated[bytes, JSON]:
        """Show this description, as OpenAPI 3.1."""
        return text(call.server.settings.auth_on)

    @cache
    def text(auth_on: bool) -> bytes:
        return msgspec.json.encode(document(found, is_open=not auth_on))

    found = (*operations, openapi, _docs, _script)
    return found


@operation("GET", "/", needs=None, status=307)
async def root(call: ApiCall) -> Annotated[bytes, "text/plain"]:  # noqa: ARG001 (all handlers take it)
    """Redirect a browser to the viewer."""
    return b"see v1/docs\n"


@operation("GET", "/v1/docs", needs=None)
async def docs(call: ApiCall) -> Annotated[bytes, "text/html; charset=utf-8"]:  # noqa: ARG001 (all handlers take it)
    """Show this description as a page."""
    return _page()


@operation("GET", f"/v1/docs/{_SCRIPT}", needs=None)
async def docs_script(
    call: ApiCall,  # noqa: ARG001 (all handlers take it)
) -> Annotated[bytes, "text/javascript; charset=utf-8"]:
    """Serve the script of the viewer."""
    return _script_text()


@cache
def _page() -> bytes:
    return (_STATIC / "docs.html").read_text().replace("{__version__}", __version__).encode()


@cache
def _script_text() -> bytes:
    return (_STATIC / _SCRIPT).read_bytes()


TO_DOCS = replace(root, internal=True, headers=(("location", "v1/docs"),))
"""Leads from `/` to the viewer, on a server without the dashboard. The address is relative, so that
a proxy may serve it below any path."""
_docs = replace(docs, internal=True, headers=(("content-security-policy", _POLICY),))
_script = replace(docs_script, internal=True, headers=(("cache-control", "max-age=86400"),))
