"""Serves the files of the dashboard: `web/index.html` at `/`, the others at `/dashboard/…`.

Each file is a literal route, so that no path of a request is ever looked up on disk. A file is read
and compressed once, at its first request. No file needs a token: they contain no data of the store.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple

from holdfast.server.access.admission import ApiCall
from holdfast.server.http.operation import Operation, WithHeaders, operation

WEB = Path(__file__).with_name("web")
INDEX = "index.html"
PREFIX = "/dashboard/"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'"
)
"""The content security policy of the page."""

HEADERS = (
    ("cache-control", "no-cache"),
    ("content-security-policy", POLICY),
    ("cross-origin-opener-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
)

_TEXT = "text/plain; charset=utf-8"
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".md": _TEXT,
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": _TEXT,
    ".woff2": "font/woff2",
    "": _TEXT,
}
_COMPRESSED = (".png", ".woff2")
"""Kinds of files that gzip does not make smaller."""


class _Variant(NamedTuple):
    """A file in one encoding. Its tag changes with each byte."""

    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    tag: str


class PageFile:
    """One file of the dashboard."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.media_type = _MEDIA_TYPES[path.suffix]

    @cached_property
    def _plain(self) -> _Variant:
        body = self._path.read_bytes()
        return _variant(body, hashlib.sha256(body).hexdigest()[:32])

    @cached_property
    def _gzipped(self) -> _Variant:
        body, _, tag = self._plain
        if self._path.suffix in _COMPRESSED:
            return self._plain
        packed = gzip.compress(body, 9, mtime=0)
        if len(packed) >= len(body):
            return self._plain
        # A strong tag names these bytes, and not those of the plain file.
        return _variant(packed, f"{tag.strip(chr(34))}-gzip", (b"content-encoding", b"gzip"))

    def answer(self, headers: Mapping[str, str]) -> WithHeaders[bytes]:
        """The file, or 304 without a body if the client has it already."""
        gzips = accepts_gzip(headers.get("accept-encoding", ""))
        found = self._gzipped if gzips else self._plain
        if _names_tag(headers.get("if-none-match", ""), found.tag):
            return WithHeaders(b"", found.headers, status=304)
        return WithHeaders(found.body, found.headers)


def _variant(body: bytes, tag: str, *more: tuple[bytes, bytes]) -> _Variant:
    quoted = f'"{tag}"'
    headers = ((b"etag", quoted.encode()), (b"vary", b"accept-encoding"), *more)
    return _Variant(body, headers, quoted)


def accepts_gzip(accepted: str) -> bool:
    """True if an Accept-Encoding header allows gzip."""
    allowed: dict[str, bool] = {}
    for part in accepted.lower().split(","):
        name, _, weight = part.partition(";")
        digits = weight.replace(" ", "").removeprefix("q=")
        allowed[name.strip()] = not digits or bool(digits.strip("0."))
    return allowed.get("gzip", allowed.get("x-gzip", allowed.get("*", False)))


def _names_tag(wanted: str, tag: str) -> bool:
    """True if an If-None-Match header names this tag, or any."""
    tags = [each.strip().removeprefix("W/") for each in wanted.split(",")]
    return tag in tags or tags == ["*"]


def _operations() -> Iterator[Operation]:
    for path in sorted(WEB.rglob("*")):
        parts = path.relative_to(WEB).parts
        if path.is_file() and not any(part.startswith((".", "__")) for part in parts):
            name = "/".join(parts)
            yield _operation_of(path, "/" if name == INDEX else PREFIX + name)


def _operation_of(path: Path, route: str) -> Operation:
    file = PageFile(path)

    @operation("GET", route, needs=None)
    async def dashboard_file(
        call: ApiCall,
    ) -> WithHeaders[Annotated[bytes, "application/octet-stream"]]:
        """Serve a file of the dashboard."""
        return file.answer(call.headers)

    return replace(
        dashboard_file, produces=file.media_type, headers=HEADERS, internal=True, is_page=True
    )


OPERATIONS: tuple[Operation, ...] = tuple(_operations())
"""One operation for each file."""
