"""URL scheme → engine or broker, not yet opened. The only module that knows the concrete ones.

Each is imported when its scheme is used, so a program loads only what it uses. Packages add
schemes by entry points in the groups `holdfast.engines` and `holdfast.brokers`. A URL may hold a
password: error texts repeat no more of it than its scheme and the names of its options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote, unquote_plus, urlencode, urlsplit

from holdfast.core import bounds
from holdfast.engines.base import Engine
from holdfast.engines.broker import Broker, BrokerLink, BrokerScheme, QueueLink
from holdfast.engines.clock import Clock
from holdfast.engines.wrapper import enforced
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from holdfast.engines.sqs.cloudwatch import CloudWatchSink

DEFAULT_URL = "sqlite:///holdfast.db"
ENTRY_POINTS: Final = "holdfast.engines"
"""Entry point group of other packages: the name is the URL scheme, the object an `OpenUrl`."""
BROKER_ENTRY_POINTS: Final = "holdfast.brokers"
"""Entry point group of other packages: the name is the URL scheme, the object a `BrokerScheme`."""
_EXAMPLES = (
    "memory:, sqlite:///work.db (or sqlite:////absolute/work.db), postgresql://host/name, "
    "partitioned:sqlite:///a.db,sqlite:///b.db, brokered:amqp://host,postgresql://host/name, "
    "sqs://eu-west-1/shop-, https://host"
)
_NAMESPACE = "namespace"
_COMPOSED = ("partitioned", "brokered")
_REGION = re.compile(r"[a-z]{2}(-[a-z0-9]+)+-[0-9]{1,2}")
_DAY_MS = bounds.DAY_MS
_TTL_MS_MAX = 49 * _DAY_MS
"""RabbitMQ's own bound is 2**32 ms."""

# Options of the PostgreSQL client itself, passed on unchanged.
_POSTGRES_OWN = (
    "host port user password passfile dbname database service sslmode sslcert sslkey sslrootcert "
    "sslcrl sslpassword sslnegotiation ssl_min_protocol_version ssl_max_protocol_version "
    "target_session_attrs krbsrvname gsslib application_name search_path statement_timeout "
    "lock_timeout"
)

OpenUrl = Callable[[str, Clock | None], Engine]
"""Creates the engine of a URL, given the whole URL and a test's clock (None: the engine's own);
raises ConfigError if the URL is wrong.
"""


def default_url() -> str:
    """HOLDFAST_URL, else a file in the current folder."""
    return os.environ.get("HOLDFAST_URL") or DEFAULT_URL


def open_engine(url: str, *, clock: Clock | None = None) -> Engine:
    """The engine that `url` names, with its traits enforced; the caller awaits its `open`."""
    scheme, colon, _ = url.partition(":")
    if not colon or scheme in ("", "/", "."):
        raise ConfigError(f"the engine URL has no scheme: use one like {_EXAMPLES}")
    open_url = _BUILT_IN.get(scheme) or _installed(scheme, ENTRY_POINTS)
    if open_url is None:
        # A text that is not a URL may be anything, even a password.
        name = f" {scheme!r}" if re.fullmatch(r"[a-z0-9+]{1,20}", scheme) else ""
        raise ConfigError(f"no engine for the URL scheme{name}: use one like {_EXAMPLES}")
    return enforced(open_url(url, clock))


def open_broker(url: str) -> Broker:
    """The broker that `url` names, for `brokered`; the caller awaits its `open`."""
    return _broker_scheme(url).open_broker(url)


def open_link(url: str) -> BrokerLink:
    """A link to the broker that `url` names, for gates; the caller awaits its `open`."""
    return _broker_scheme(url).open_link(url)


def open_queue_link(url: str) -> QueueLink:
    """A link to the broker that `url` names, for a distribution between its queues; the caller
    awaits its `open`. Raises ConfigError if the broker cannot do that."""
    link = open_link(url)
    if not isinstance(link, QueueLink):
        raise ConfigError(
            "this broker cannot send messages on from queue to queue: use one like sqs://REGION"
        )
    return link


def open_cloudwatch(namespace: str) -> CloudWatchSink:
    """A sink for metrics of queues, in a namespace of CloudWatch; the caller closes it."""
    try:
        from holdfast.engines.sqs.cloudwatch import CloudWatchSink
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"metrics in CloudWatch need the package {error.name}: pip install 'holdfast[aws]'"
        ) from None
    return CloudWatchSink(namespace)


def schemes() -> list[str]:
    """Every URL scheme that can be opened, built in or installed."""
    return sorted({*_BUILT_IN, *(point.name for point in _entry_points(ENTRY_POINTS))})


def redacted(url: str) -> str:
    """The URL without user, password and options, for people to see."""
    scheme, _, _ = url.partition(":")
    if scheme in _COMPOSED:
        return f"{scheme}:{','.join(map(redacted, parts_of(url)))}"
    if scheme in ("memory", "sqlite"):
        return url.partition("?")[0]
    if scheme == "sqs":
        # The options may hold the password of a control engine.
        url = url.partition("?")[0]
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{scheme}:…"
    if parts.fragment or "@" in parts.query:
        # A password that is not percent-encoded: its end is ambiguous.
        return f"{scheme}:…"
    return f"{parts.scheme}://{(parts.netloc + parts.path).rpartition('@')[2]}"


def namespace_of(url: str) -> str:
    """The namespace in a URL; `default` if it names none."""
    found = re.findall(rf"[?&]{_NAMESPACE}=([^&,]*)", url)
    return unquote_plus(found[-1]) if found else "default"


def with_namespace(url: str, name: str) -> str:
    """The same URL with this namespace instead of its own. Each memory engine is already a separate
    store, so its URL stays the same.
    """
    _namespace("namespace", name)
    scheme = url.partition(":")[0]
    if scheme == "partitioned":
        return f"partitioned:{','.join(with_namespace(one, name) for one in parts_of(url))}"
    if scheme == "brokered":
        broker, *ledger = parts_of(url)
        return f"brokered:{','.join([broker, *(with_namespace(one, name) for one in ledger)])}"
    if scheme == "memory":
        return url
    if scheme == "sqlite":
        place, _, query = url.partition("?")
        return f"{place}?{_query_with_namespace(query, name)}"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(f"the {scheme[:20]} URL cannot be parsed") from None
    query = _query_with_namespace(parts.query, name)
    if scheme == "sqs":
        query = _control_with_namespace(query, name)
    return parts._replace(query=query).geturl()


def parts_of(url: str) -> list[str]:
    """The URLs in a composed URL: those of the partitions, or of the broker and its ledger. Only a
    comma before the URL of an engine separates two: hosts and paths may contain commas."""
    names = "|".join(map(re.escape, schemes()))
    return re.split(rf",(?=(?:{names}):)", url.partition(":")[2])


def _query_with_namespace(query: str, name: str) -> str:
    """The other options stay exactly as written: one may be a password."""
    others = [
        option
        for option in query.split("&")
        if option and unquote_plus(option).split("=")[0] != _NAMESPACE
    ]
    return "&".join([*others, f"{_NAMESPACE}={name}"])


def _control_with_namespace(query: str, name: str) -> str:
    """The engine that `control` names has the same namespaces."""
    options = query.split("&")
    for at, option in enumerate(options):
        key, _, value = option.partition("=")
        if key == "control":
            options[at] = f"control={quote(with_namespace(unquote_plus(value), name), safe=':/')}"
    return "&".join(options)


def _broker_scheme(url: str) -> BrokerScheme:
    scheme = url.partition(":")[0]
    found: BrokerScheme | None = _BROKERS.get(scheme)
    found = found or _installed(scheme, BROKER_ENTRY_POINTS)
    if found is None:
        name = f" {scheme!r}" if re.fullmatch(r"[a-z0-9+]{1,20}", scheme) else ""
        raise ConfigError(
            f"no broker for the URL scheme{name}: use one like amqp://user:password@host/vhost or"
            " sqs://REGION"
        )
    return found


def _installed(scheme: str, group: str) -> Any:
    """The object of another package. Two packages with the same scheme are an error."""
    points = [point for point in _entry_points(group) if point.name == scheme]
    if not points:
        return None
    if len({point.value for point in points}) > 1:
        packages = " and ".join(sorted({_package_of(point) for point in points}))
        raise ConfigError(f"the URL scheme {scheme} is claimed by {packages}: uninstall one")
    try:
        return points[0].load()
    except (ImportError, AttributeError) as error:
        noun = "engine" if group == ENTRY_POINTS else "broker"
        raise ConfigError(
            f"the {noun} for the URL scheme {scheme} cannot be loaded ({error}): reinstall "
            f"{_package_of(points[0])}"
        ) from error


def _entry_points(group: str) -> Iterable[EntryPoint]:
    # Imported here: it costs more than most commands, which use built-in schemes only.
    from importlib.metadata import entry_points

    return entry_points(group=group)


def _package_of(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _memory(url: str, clock: Clock | None) -> Engine:
    from holdfast.engines.memory import MemoryEngine

    place, _, query = url.partition(":")[2].partition("?")
    if place.strip("/"):
        raise ConfigError("the memory engine takes no path: write memory:")
    _options("memory", query, {})
    return MemoryEngine(clock=clock)


def _sqlite(url: str, clock: Clock | None) -> Engine:
    place, _, query = url.partition(":")[2].partition("?")
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
            "the postgresql URL cannot be parsed: write postgresql://user:password@host:port/name, "
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


def _remote(url: str, _clock: Clock | None) -> Engine:
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
        raise ConfigError("the token has invalid characters: copy it exactly as it was shown")
    try:
        from holdfast.engines.remote import RemoteEngine
    except ModuleNotFoundError as error:
        raise _missing(error, "remote", "remote") from None
    place = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
    return RemoteEngine(place, token=token, **options)


def _sqs(url: str, clock: Clock | None) -> Engine:
    parts = urlsplit(url.partition("#")[0])
    region, prefix = parts.netloc, unquote(parts.path.removeprefix("/"))
    if not _REGION.fullmatch(region) or "#" in url:
        raise ConfigError(
            "an sqs URL is sqs://REGION/PREFIX, e.g. sqs://eu-west-1/shop-; credentials are never"
            " part of it: AWS_ACCESS_KEY_ID, AWS_PROFILE or the role of the machine give them"
        )
    known = {
        "namespace": _namespace,
        "endpoint": _endpoint,
        "create": _switch,
        "control": _control_url,
    }
    options = _options("sqs", parts.query, known)
    control_url = options.pop("control", None)
    control = None if control_url is None else open_engine(control_url, clock=clock)
    try:
        from holdfast.engines.sqs.engine import SqsEngine
    except ModuleNotFoundError as error:
        raise _missing(error, "sqs", "aws") from None
    return SqsEngine(region, prefix, control=control, clock=clock, **options)


def _endpoint(name: str, text: str) -> str:
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 (reading it is what checks it)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ConfigError(
            f"the option {name} needs the address of an SQS endpoint, without credentials, e.g."
            " http://127.0.0.1:7433"
        )
    return text


def _control_url(name: str, text: str) -> str:
    if text.partition(":")[0] == "sqs":
        raise ConfigError(
            f"the option {name} names an engine that stores records, which SQS cannot: use e.g."
            " sqlite:///control.db or postgresql://host/name"
        )
    return text


def _missing(error: ModuleNotFoundError, engine: str, extra: str) -> Exception:
    """The error for an engine whose third-party package is not installed."""
    if error.name is None or error.name.startswith("holdfast."):
        return error
    return ConfigError(
        f"the {engine} engine needs the package {error.name}: pip install 'holdfast[{extra}]'"
    )


def _partitioned(url: str, clock: Clock | None) -> Engine:
    from holdfast.engines.partitioned import PartitionedEngine

    urls = parts_of(url)
    if any(each.partition(":")[0] in _COMPOSED for each in urls):
        raise ConfigError("a partition is a single store: list all partitions in one URL")
    if urls == [""]:
        raise ConfigError(
            "a partitioned URL names its stores: partitioned:sqlite:///a.db,sqlite:///b.db"
        )
    engines = [(redacted(each), open_engine(each, clock=clock)) for each in urls]
    return PartitionedEngine(engines)


def _brokered(url: str, clock: Clock | None) -> Engine:
    from holdfast.engines.brokered import BrokeredEngine

    urls = parts_of(url)
    if len(urls) != 2:
        raise ConfigError(
            "a brokered URL names a broker and its ledger: "
            "brokered:amqp://user:password@host/vhost,postgresql://host/name"
        )
    broker_url, ledger_url = urls
    ledger = open_engine(ledger_url, clock=clock)
    if not ledger.traits.shared:
        raise ConfigError(
            f"the {ledger.traits.name} engine cannot be the ledger of a broker, because other "
            "processes cannot open it: use a SQLite file or a PostgreSQL database"
        )
    # Before the broker: a wrong ledger is the clearer error.
    broker = open_broker(broker_url)
    return BrokeredEngine(ledger, broker, namespace=_namespace_of(ledger_url))


def _namespace_of(url: str) -> str:
    query = url.partition("?")[2]
    return dict(parse_qsl(query)).get(_NAMESPACE, "default")


class _Rabbit:
    """amqp:// and amqps://: a `BrokerScheme`."""

    def open_broker(self, url: str) -> Broker:
        try:
            from holdfast.engines.rabbitmq import RabbitBroker
        except ModuleNotFoundError as error:
            raise _missing(error, "rabbitmq", "rabbitmq") from None
        place, options = self._read(url)
        prefix, dead_ttl_ms = options.pop("prefix", "holdfast"), options.pop("dead-ttl", _DAY_MS)
        return RabbitBroker(place, prefix=prefix, dead_ttl_ms=dead_ttl_ms, **options)

    def open_link(self, url: str) -> BrokerLink:
        try:
            from holdfast.engines.rabbitmq import RabbitLink
        except ModuleNotFoundError as error:
            raise _missing(error, "rabbitmq", "rabbitmq") from None
        place, options = self._read(url)
        files = {name: options[name] for name in ("ca", "cert") if name in options}
        return RabbitLink(place, **files)

    @staticmethod
    def _read(url: str) -> tuple[str, dict[str, Any]]:
        """The URL without options, and the options."""
        place, _, query = url.partition("?")
        if "@" in query:
            # A password that is not percent-encoded: its end is ambiguous.
            raise ConfigError(
                "the amqp URL cannot be parsed: percent-encode the characters / # ? @ : % of the "
                "password"
            )
        known = {"prefix": _prefix, "dead-ttl": _ttl_ms, "ca": _file, "cert": _file}
        return place, _options("amqp", query, known)


class _Sqs:
    """sqs://REGION: a `BrokerScheme`, for gates only."""

    def open_broker(self, url: str) -> Broker:
        raise ConfigError(
            "SQS cannot carry the jobs of a brokered store: use amqp://, or sqs:// as an engine"
        )

    def open_link(self, url: str) -> BrokerLink:
        region, options = self._read(url)
        try:
            from holdfast.engines.sqs.link import SqsLink
        except ModuleNotFoundError as error:
            raise _missing(error, "sqs", "aws") from None
        return SqsLink(region, **options)

    @staticmethod
    def _read(url: str) -> tuple[str, dict[str, Any]]:
        place, _, query = url.partition("?")
        region = place.removeprefix("sqs:").strip("/")
        if not _REGION.fullmatch(region):
            raise ConfigError(
                "the sqs URL of a broker is sqs://REGION such as sqs://eu-west-1: the credentials"
                " are found as by other AWS tools, and queues are named by the gates"
            )
        return region, _options("sqs", query, {"endpoint": _endpoint})


_BROKERS: dict[str, BrokerScheme] = {"amqp": _Rabbit(), "amqps": _Rabbit(), "sqs": _Sqs()}

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
            options_known = ", ".join(sorted(known)) or "none"
            raise ConfigError(
                f"unknown option {name[:40]!r} in the {scheme} URL; its options are: "
                f"{options_known}"
            )
    return options


def _prefix(name: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,30}", text):
        raise ConfigError(
            f"the option {name} is {text[:40]!r}; use 1 to 30 characters of A-Z a-z 0-9 _ -"
        )
    return text


def _ttl_ms(name: str, text: str) -> int:
    units = {"s": bounds.SECOND_MS, "m": bounds.MINUTE_MS, "h": bounds.HOUR_MS, "d": _DAY_MS}
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    ttl_ms = int(found[1]) * units[found[2]] if found else 0
    if not 0 < ttl_ms <= _TTL_MS_MAX:
        raise ConfigError(f"the option {name} is {text[:40]!r}; use 1s to 49d, e.g. 24h")
    return ttl_ms


def _one_of(*values: str) -> Reader:
    def read(name: str, text: str) -> str:
        if text not in values:
            raise ConfigError(f"the option {name} is {text[:40]!r}; use {' or '.join(values)}")
        return text

    return read


def _namespace(name: str, text: str) -> str:
    if not bounds.NAMESPACE.match(text):
        raise ConfigError(
            f"the option {name} is {text[:40]!r}; use 1 to 80 characters of A-Z a-z 0-9 _ . -"
        )
    return text


def _file(name: str, text: str) -> str:
    if not text or "\0" in text:
        raise ConfigError(f"the option {name} needs the path of a file with certificates (PEM)")
    return text


def _schema(name: str, text: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", text):
        raise ConfigError(
            f"the option {name} is {text[:40]!r}; use 1 to 63 characters of a-z 0-9 _"
        )
    return text


def _whole_number(name: str, text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,2}", text):
        raise ConfigError(f"the option {name} is {text[:40]!r}; use a number from 1 to 999")
    return int(text)


def _switch(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"the option {name} is {text[:40]!r}; use true or false")
    return text == "true"


_BUILT_IN: dict[str, OpenUrl] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
    "partitioned": _partitioned,
    "brokered": _brokered,
    "sqs": _sqs,
    "http": _remote,
    "https": _remote,
}
