"""The description of the API as JSON, and a page to read it on that needs nothing from elsewhere.

The viewer is OpenAPI Explorer, in one file beside its licence.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.server.calls import Call
from holdfast.server.openapi import document
from holdfast.server.operations import JSON, Operation, operation

_STATIC = Path(__file__).with_name("static")
_SCRIPT = "openapi-explorer.min.js"
_PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Holdfast API</title>
<script type="module" src="docs/{_SCRIPT}"></script>
</head>
<body>
<openapi-explorer spec-url="openapi.json" server-url="/" hide-server-selection="true">
</openapi-explorer>
</body>
</html>
"""
_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    # The viewer writes its styles into its own elements.
    "style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def described(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """These operations, and what tells of all of them."""

    @operation("GET", "/v1/openapi.json", needs=None)
    async def openapi(call: Call) -> Annotated[bytes, JSON]:
        """This description, as OpenAPI 3.1."""
        return text(call.server.settings.auth_on)

    @cache
    def text(auth_on: bool) -> bytes:
        return msgspec.json.encode(document(found, is_open=not auth_on))

    found = (*operations, openapi, _root, _docs, _script)
    return found


@operation("GET", "/", needs=None, status=307)
async def root(call: Call) -> Annotated[bytes, "text/plain"]:  # noqa: ARG001 (all take it)
    """For a person with a browser: to the page of the API."""
    return b"see /v1/docs\n"


@operation("GET", "/v1/docs", needs=None)
async def docs(call: Call) -> Annotated[bytes, "text/html; charset=utf-8"]:  # noqa: ARG001 (all take it)
    """A page to read this description on."""
    return _PAGE.encode()


@operation("GET", f"/v1/docs/{_SCRIPT}", needs=None)
async def docs_script(
    call: Call,  # noqa: ARG001 (all take it)
) -> Annotated[bytes, "text/javascript; charset=utf-8"]:
    """What that page is made with."""
    return _script_text()


@cache
def _script_text() -> bytes:
    return (_STATIC / _SCRIPT).read_bytes()


_root = replace(root, internal=True, headers=(("location", "/v1/docs"),))
_docs = replace(docs, internal=True, headers=(("content-security-policy", _POLICY),))
_script = replace(docs_script, internal=True, headers=(("cache-control", "max-age=86400"),))
