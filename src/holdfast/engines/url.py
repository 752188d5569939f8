"""One URL → one engine, not yet opened. The only module that knows the concrete engines.

Each is imported when its scheme is met, so a program pays only for what it uses. A URL may hold
a password: no text made here repeats more of it than its scheme and the names of its options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from holdfast.core import limits
from holdfast.engines.base import Engine
from holdfast.engines.clock import Clock
from holdfast.errors import ConfigError

DEFAULT_URL = "sqlite:///holdfast.db"
_EXAMPLES = (
    "memory:, sqlite:///work.db (or sqlite:////absolute/work.db), postgresql://host/name, "
    "partitioned:sqlite:///a.db,sqlite:///b.db"
)
_NEXT_PARTITION = re.compile(r",(?=(?:memory|sqlite|postgresql|postgres|partitioned):)")

# What the PostgreSQL client understands by itself; it is passed on as it stands.
_POSTGRES_OWN = (
    "host port user password passfile dbname database service sslmode sslcert sslkey sslrootcert "
    "sslcrl sslpassword sslnegotiation ssl_min_protocol_version ssl_max_protocol_version "
    "target_session_attrs krbsrvname gsslib application_name search_path statement_timeout "
    "lock_timeout"
)


def default_url() -> str:
    """HOLDFAST_URL, else a file in the current folder."""
    return os.environ.get("HOLDFAST_URL") or DEFAULT_URL


def open_engine(url: str, *, clock: Clock | None = None) -> Engine:
    """The engine that `url` names; the caller awaits its `open`."""
    scheme, colon, rest = url.partition(":")
    match scheme if colon else "":
        case "memory":
            return _memory(rest, clock)
        case "sqlite":
            return _sqlite(rest, clock)
        case "postgresql" | "postgres":
            return _postgres(url, clock)
        case "partitioned":
            return _partitioned(rest, clock)
        case "" | "/" | ".":
            raise ConfigError(f"the engine URL has no scheme: use one like {_EXAMPLES}")
        case _:
            # A text that is no URL may be anything, a password too.
            named = f" {scheme!r}" if re.fullmatch(r"[a-z0-9+]{1,20}", scheme) else ""
            raise ConfigError(f"no engine for the URL scheme{named}: use one like {_EXAMPLES}")


def redacted(url: str) -> str:
    """The URL as it may be shown: without user, password and options."""
    scheme, _, _ = url.partition(":")
    if scheme == "partitioned":
        return f"partitioned:{','.join(map(redacted, partitions_of(url)))}"
    if scheme in ("memory", "sqlite"):
        return url.partition("?")[0]
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{scheme}:…"
    if parts.fragment or "@" in parts.query:
        # A password that is not percent-encoded: nobody can say where it ends.
        return f"{scheme}:…"
    return f"{parts.scheme}://{(parts.netloc + parts.path).rpartition('@')[2]}"


def partitions_of(url: str) -> list[str]:
    """The URLs of the partitions. A comma parts them only where another URL begins, because hosts
    and paths may have commas too."""
    return _NEXT_PARTITION.split(url.partition(":")[2])


def _memory(rest: str, clock: Clock | None) -> Engine:
    from holdfast.engines.memory import MemoryEngine

    place, _, query = rest.partition("?")
    if place.strip("/"):
        raise ConfigError("the memory engine has no path: write memory:")
    _options("memory", query, {})
    return MemoryEngine(clock=clock)


def _sqlite(rest: str, clock: Clock | None) -> Engine:
    place, _, query = rest.partition("?")
    path = unquote(place[3:])
    if not place.startswith("///") or not path.strip("/") or "\0" in path:
        raise ConfigError(
            "a sqlite URL is sqlite:/// and a path: sqlite:///work.db in the current folder, "
            "sqlite:////var/lib/work.db for an absolute one"
        )
    known = {"durability": _one_of("full", "relaxed"), "namespace": _namespace}
    options = _options("sqlite", query, known)
    from holdfast.engines.sqlite import SQLiteEngine

    return SQLiteEngine(path, clock=clock, **options)


def _postgres(url: str, clock: Clock | None) -> Engine:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 (reading it is what checks it)
    except ValueError:
        raise ConfigError(
            "the postgresql URL cannot be read: write postgresql://user:password@host:port/name, "
            "with special characters in the password percent-encoded"
        ) from None
    known = {
        "namespace": _namespace,
        "schema": _schema,
        "connections": _whole_number,
        "pooled": _switch,
    }
    options = _options("postgresql", parts.query, known, also=_POSTGRES_OWN.split())
    own = {name: options.pop(name) for name in tuple(options) if name not in known}
    dsn = parts._replace(query=urlencode(own)).geturl()
    try:
        from holdfast.engines.postgres import PostgresEngine
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("holdfast."):
            raise
        raise ConfigError(
            f"the postgresql engine needs the package {error.name}: "
            "pip install 'holdfast[postgres]'"
        ) from None
    return PostgresEngine(dsn, clock=clock, **options)


def _partitioned(rest: str, clock: Clock | None) -> Engine:
    from holdfast.engines.partitioned import PartitionedEngine

    urls = partitions_of(f"partitioned:{rest}")
    if any(url.partition(":")[0] == "partitioned" for url in urls):
        raise ConfigError("a partition is one store: name all of them in one list")
    if urls == [""]:
        raise ConfigError(
            "a partitioned URL names its stores: partitioned:sqlite:///a.db,sqlite:///b.db"
        )
    engines = [(redacted(url), open_engine(url, clock=clock)) for url in urls]
    return PartitionedEngine(engines)


Reader = Callable[[str, str], Any]


def _options(
    scheme: str, query: str, known: Mapping[str, Reader], *, also: Collection[str] = ()
) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name in options:
            raise ConfigError(f"the option {name!r} is given twice in the {scheme} URL")
        if name in known:
            options[name] = known[name](name, text)
        elif name in also:
            options[name] = text
        else:
            there = ", ".join(sorted(known)) or "none"
            raise ConfigError(
                f"unknown option {name[:40]!r} in the {scheme} URL; its options are: {there}"
            )
    return options


def _one_of(*values: str) -> Reader:
    def read(name: str, text: str) -> str:
        if text not in values:
            raise ConfigError(f"the option {name} is {text[:40]!r}; use {' or '.join(values)}")
        return text

    return read


def _namespace(name: str, text: str) -> str:
    if not limits.NAMESPACE.match(text):
        raise ConfigError(f"the option {name} is {text[:40]!r}; use 1 to 80 of A-Z a-z 0-9 _ . -")
    return text


def _schema(name: str, text: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", text):
        raise ConfigError(f"the option {name} is {text[:40]!r}; use 1 to 63 of a-z 0-9 _")
    return text


def _whole_number(name: str, text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,2}", text):
        raise ConfigError(f"the option {name} is {text[:40]!r}; use a number from 1 to 999")
    return int(text)


def _switch(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"the option {name} is {text[:40]!r}; use true or false")
    return text == "true"
