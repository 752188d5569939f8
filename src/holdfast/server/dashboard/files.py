"""Serves the dashboard: `web/index.html` at `/`, and at `/dashboard/HASH/…` one script, one style
sheet, the icon and the licences. `bundle` makes the two from the files below `web`.

The hash is that of all files: browsers keep what they loaded for good, and never mix two versions.

Files are read when the server starts, and joined at the first request for one of the two, which
takes some 50 ms: many servers never show the page. Each is a literal route, and no path of a
request is looked up on disk. No file needs a token: they contain no data of the store."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import Annotated, Final, NamedTuple

from holdfast.server.access.admission import ApiCall
from holdfast.server.dashboard.bundle import join_modules, join_styles
from holdfast.server.http.operation import Operation, WithHeaders, operation

WEB = Path(__file__).with_name("web")
INDEX = "index.html"
MAIN: Final = "main.js"
SCRIPT, STYLE = "dashboard.js", "dashboard.css"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'"
)
"""The content security policy of the page."""

HEADERS = (
    ("content-security-policy", POLICY),
    ("cross-origin-opener-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
)

CHECKED = ("cache-control", "no-cache")
IMMUTABLE = ("cache-control", "public, max-age=31536000, immutable")

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

_SHEETS = re.compile(r'(?:<link rel="stylesheet" href="dashboard/[^"]+">\n)+')
_NOTICE = "// Contains Preact, htm and uPlot: their licences are in vendor/, beside this file.\n"


class _Variant(NamedTuple):
    """A file in one encoding. Its tag changes with each byte."""

    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    tag: str


class PageFile:
    """One file of the dashboard. `make` returns its bytes; it is called once, when they are first
    asked for."""

    def __init__(self, name: str, make: Callable[[], bytes]) -> None:
        self._suffix = PurePath(name).suffix
        self._make = make
        self.media_type: str = _MEDIA_TYPES[self._suffix]

    @cached_property
    def _plain(self) -> _Variant:
        body = self._make()
        return _variant(body, hashlib.sha256(body).hexdigest()[:32])

    @cached_property
    def _gzipped(self) -> _Variant:
        body, _, tag = self._plain
        if self._suffix in _COMPRESSED:
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


def _read_files() -> dict[str, bytes]:
    """The files by their names, such as `lib/api.js`."""
    found = {}
    for path in sorted(WEB.rglob("*")):
        parts = path.relative_to(WEB).parts
        if path.is_file() and not any(part.startswith((".", "__")) for part in parts):
            found["/".join(parts)] = path.read_bytes()
    return found


def _hash_of(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, body in files.items():
        digest.update(b"%s\0%d\0%s" % (name.encode(), len(body), body))
    return digest.hexdigest()[:16]


def served_files(files: Mapping[str, bytes]) -> dict[str, Callable[[], bytes]]:
    """The served files by name, the index aside: functions that return their bytes."""
    others = {
        name: partial(bytes, body)
        for name, body in files.items()
        if name.endswith((".svg", ".txt"))
    }
    return {SCRIPT: partial(_script, files), STYLE: partial(_style, files), **others}


def _script(files: Mapping[str, bytes]) -> bytes:
    modules = {name: body.decode() for name, body in files.items() if name.endswith(".js")}
    return (_NOTICE + join_modules(modules, MAIN)).encode()


def _style(files: Mapping[str, bytes]) -> bytes:
    sheets = {name: body.decode() for name, body in files.items() if name.endswith(".css")}
    return join_styles(sheets, files[INDEX].decode()).encode()


def index_page(page: str, folder: str) -> bytes:
    """The index page with the script and the style sheet in this folder."""
    page = _SHEETS.sub(f'<link rel="stylesheet" href="dashboard/{STYLE}">\n', page)
    page = page.replace(f'"dashboard/{MAIN}"', f'"dashboard/{SCRIPT}"')
    return page.replace('"dashboard/', f'"{folder}').encode()


def _operations() -> Iterator[Operation]:
    files = _read_files()
    folder = f"dashboard/{_hash_of(files)}/"
    page = partial(index_page, files[INDEX].decode(), folder)
    yield _operation_of("/", PageFile(INDEX, page), CHECKED)
    for name, make in served_files(files).items():
        yield _operation_of(f"/{folder}{name}", PageFile(name, make), IMMUTABLE)


def _operation_of(route: str, file: PageFile, caching: tuple[str, str]) -> Operation:
    @operation("GET", route, needs=None)
    async def dashboard_file(
        call: ApiCall,
    ) -> WithHeaders[Annotated[bytes, "application/octet-stream"]]:
        """Serve a file of the dashboard."""
        return file.answer(call.headers)

    return replace(
        dashboard_file,
        produces=file.media_type,
        headers=(caching, *HEADERS),
        internal=True,
        is_page=True,
    )


OPERATIONS: tuple[Operation, ...] = tuple(_operations())
"""One operation for each file."""
