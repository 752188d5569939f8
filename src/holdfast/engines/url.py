"""One URL → one engine, not yet opened. The only module that knows the concrete engines.

Each is imported when its scheme is met, so a program pays only for what it uses. A URL may hold
a password: no text made here repeats more of it than its scheme and the names of its options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_plus, urlencode, urlsplit

from holdfast.core import limits
from holdfast.engines.base import Engine
from holdfast.engines.clock import Clock
from holdfast.errors import ConfigError

DEFAULT_URL = "sqlite:///holdfast.db"
_EXAMPLES = (
    "memory:, sqlite:///work.db (or sqlite:////absolute/work.db), postgresql://host/name, "
    "partitioned:sqlite:///a.db,sqlite:///b.db, https://host"
)
_NAMED = "namespace"
_SCHEMES = "memory|sqlite|postgresql|postgres|partitioned|https?"
_NEXT_PARTITION = re.compile(rf",(?=(?:{_SCHEMES}):)")

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
        case "http" | "https":
            return _remote(url)
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


def with_namespace(url: str, name: str) -> str:
    """The same place, but the namespace `name` in it, whatever namespace the URL names. Every
    engine in memory is a store of its own already."""
    _namespace("namespace", name)
    scheme = url.partition(":")[0]
    if scheme == "partitioned":
        return f"partitioned:{','.join(with_namespace(one, name) for one in partitions_of(url))}"
    if scheme == "memory":
        return url
    if scheme == "sqlite":
        place, _, query = url.partition("?")
        return f"{place}?{_renamed(query, name)}"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(f"the {scheme[:20]} URL cannot be read") from None
    return parts._replace(query=_renamed(parts.query, name)).geturl()


def _renamed(query: str, name: str) -> str:
    """The other options as they are written: they may be a password's."""
    others = [one for one in query.split("&") if one and unquote_plus(one).split("=")[0] != _NAMED]
    return "&".join([*others, f"{_NAMED}={name}"])


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
        raise _missing(error, "postgresql", "postgres") from None
    return PostgresEngine(dsn, clock=clock, **options)


def _remote(url: str) -> Engine:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 (reading it is what checks it)
    except ValueError:
        parts = urlsplit("")
    user, at, host = parts.netloc.rpartition("@")
    if not host or parts.fragment or ":" in user or bool(at) != bool(user):
        raise ConfigError(
            "a server's URL is https://host, https://host:port or, with a token, "
            "https://hf_…@host; the token may also be in HOLDFAST_TOKEN"
        )
    known = {"namespace": _namespace, "ca": _file, "cert": _file}
    options = _options(parts.scheme, parts.query, known)
    token = unquote(user) or os.environ.get("HOLDFAST_TOKEN") or None
    if token is not None and not re.fullmatch(r"[\x21-\x7e]{1,512}", token):
        raise ConfigError("the token has characters that no token has: copy it as it was shown")
    try:
        from holdfast.engines.remote import RemoteEngine
    except ModuleNotFoundError as error:
        raise _missing(error, "remote", "remote") from None
    place = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
    return RemoteEngine(place, token=token, **options)


def _missing(error: ModuleNotFoundError, engine: str, extra: str) -> Exception:
    """What to say when an engine's package is not there."""
    if error.name is None or error.name.startswith("holdfast."):
        return error
    return ConfigError(
        f"the {engine} engine needs the package {error.name}: pip install 'holdfast[{extra}]'"
    )


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


def _file(name: str, text: str) -> str:
    if not text or "\0" in text:
        raise ConfigError(f"the option {name} names no file; use one with certificates (PEM)")
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
