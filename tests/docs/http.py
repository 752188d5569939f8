"""Generates the reference in docs/http.md from the server's description of its API.

`python -m tests.docs.http` rewrites it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.server.application import OPERATIONS
from holdfast.server.http.openapi import document
from holdfast.server.http.problems import STATUS

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
_REF = "#/components/schemas/"
_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "{} or more characters",
    "maxLength": "at most {} characters",
    "minItems": "{} or more",
    "maxItems": "at most {}",
    "minProperties": "{} or more",
    "maxProperties": "at most {}",
    "pattern": "`{}`",
}


def with_reference(text: str) -> str:
    described = document(OPERATIONS)
    parts = {
        "operations": "\n".join(_operations(described)),
        "types": "\n".join(_types(described["components"]["schemas"])),
        "errors": "\n".join(_errors()),
    }
    for name, part in parts.items():
        marked = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
        assert marked, f"docs/http.md has lost its <!-- {name} --> marks"
        text = text[: marked.start(1)] + part + "\n" + text[marked.end(1) :]
    return text


def _operations(described: dict[str, Any]) -> Iterator[str]:
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = defaultdict(list)
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if not operation.get("x-internal"):
                by_tag[operation["tags"][0]].append((method.upper(), path, operation))
    for tag in sorted(by_tag):
        yield f"### {tag}\n"
        for method, path, operation in by_tag[tag]:
            yield from _operation(method, path, operation)


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"#### `{method} {path}`\n"
    yield f"{operation['description']}\n"
    rows = [
        (f"`{each['name']}`", f"{each['in']}{'' if each['required'] else ', optional'}", each)
        for each in operation.get("parameters", [])
    ]
    if rows:
        yield "| Name | Where | What |\n|---|---|---|"
        for name, where, each in rows:
            yield f"| {name} | {where} | {_cell(_said(each['schema'], each))} |"
        yield ""
    body = operation.get("requestBody")
    if body is not None:
        [schema] = [each["schema"] for each in body["content"].values()]
        yield f"Takes {_shape(schema)}{'' if body['required'] else ', or nothing'}.\n"
    [status] = [each for each in operation["responses"] if each.startswith("2")]
    content = operation["responses"][status].get("content")
    if content is None:
        yield f"Answers {status}, without a body.\n"
    for kind, each in (content or {}).items():
        what = _shape(each["schema"]) if kind == "application/json" else f"`{kind}`"
        yield f"Answers {status} with {what}.\n"


def _types(schemas: dict[str, Any]) -> Iterator[str]:
    for name, schema in schemas.items():
        yield f"### {name}\n"
        if said := schema.get("description"):
            yield f"{' '.join(said.split())}\n"
        if "properties" not in schema:
            yield f"{_shape(schema)}\n"
            continue
        required = schema.get("required", [])
        yield "| Field | What |\n|---|---|"
        for field, each in schema["properties"].items():
            mark = "" if field in required else ", optional"
            yield f"| `{field}` | {_cell(_said(each, mark=mark))} |"
        yield ""


def _said(schema: dict[str, Any], beside: dict[str, Any] | None = None, *, mark: str = "") -> str:
    text = _shape(schema)
    bounds = [
        words.format(schema[key])
        for key, words in _BOUNDS.items()
        # A pattern that reads like a link is left to the description.
        if key in schema and "](" not in str(schema[key]) and not _is_duration(schema)
    ]
    if schema.get("default") not in (None, [], {}):
        bounds.append(f"default `{schema['default']}`")
    if bounds:
        text += f" ({', '.join(bounds)})"
    text += mark
    own = None if _is_duration(schema) else schema.get("description")
    description = own or (beside or {}).get("description")
    return f"{text}. {description}" if description else text


def _shape(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " or ".join("null" if each is None else f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_shape(each) for each in schema["anyOf"]))
    kind = schema.get("type", "anything")
    if _is_duration(schema):
        return "a duration or null" if "null" in kind else "a duration"
    if isinstance(kind, list):
        return " or ".join(_shape({**schema, "type": each}) for each in kind)
    if kind == "array":
        if "prefixItems" in schema:
            return f"a list of ({', '.join(map(_shape, schema['prefixItems']))})"
        return f"a list of {_shape(schema.get('items', {}))}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"an object of {_shape(inner)}" if isinstance(inner, dict) else "an object"
    if schema.get("format") == "date-time":
        return "an instant"
    return str(kind)


def _is_duration(schema: dict[str, Any]) -> bool:
    """Whether it is a number of seconds or a text with a unit, which the page explains once."""
    return "number" in schema.get("type", ()) and "ms|s|m|h|d|w" in schema.get("pattern", "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _errors() -> Iterator[str]:
    yield "| Status | Code | What to do |\n|---|---|---|"
    said: dict[str, str] = {}
    for kind in kinds():
        said.setdefault(kind.code, kind.__doc__ or "")
    for code, status in sorted(STATUS.items(), key=lambda item: (item[1], item[0])):
        if code in said:
            yield f"| {status} | `{code}` | {_cell(said[code])} |"


def kinds(root: type[HoldfastError] = HoldfastError) -> Iterator[type[HoldfastError]]:
    """All errors of the server, the special ones first."""
    for child in sorted(root.__subclasses__(), key=lambda each: each.__name__):
        yield from kinds(child)
    if root.__module__ == "holdfast.errors" or root.__module__.startswith("holdfast.server."):
        yield root


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text()))
