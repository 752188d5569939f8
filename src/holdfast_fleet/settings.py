"""Settings of the fleet, read from the environment and checked all at once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from holdfast import ConfigError
from holdfast_fleet.model import Prices

PREFIX: Final = "RUNS_FLEET_"
REQUIRED: Final = (
    "TERMINATION_QUEUE_URL",
    "HOUSEKEEPING_QUEUE_URL",
    "JOBS_TABLE",
    "POOLS_TABLE",
)
MAX_RUNTIME_S: Final = 6 * 3600
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_DURATION: Final = re.compile(r"([0-9]{1,9})([smhd]?)\Z")
_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}\Z")
_AWS_HOST: Final = re.compile(r"sqs\.([a-z]{2}(?:-[a-z0-9]+)+-[0-9]{1,2})\.amazonaws\.com(\.cn)?\Z")
_QUEUE: Final = re.compile(r"(?!.*-dlq\Z)(?!.*___)[A-Za-z0-9_-]{1,76}\Z")
_PREFIX_MAX: Final = 60
_DEFAULT_REGION: Final = "us-east-1"


class QueueAddress(NamedTuple):
    """A queue by its URL. `endpoint` is None for AWS's own."""

    name: str
    region: str
    endpoint: str | None


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`archive` is a folder for deleted job records, `metrics_file` a file for Prometheus."""

    termination: QueueAddress
    housekeeping: QueueAddress
    jobs_table: str
    pools_table: str
    max_runtime_s: int = MAX_RUNTIME_S
    prices: Prices = Prices()
    archive: Path | None = None
    metrics_file: Path | None = None

    @property
    def region(self) -> str:
        return self.termination.region

    @property
    def prefix(self) -> str:
        """The beginning of both queues' names, up to a hyphen. With it the engine asks only about
        queues of the fleet, so that its role needs no right to others."""
        names = [self.termination.name, self.housekeeping.name]
        common = os.path.commonprefix(names)  # noqa: RUF071 (letters, not folders)
        return common[: common.rfind("-") + 1][:_PREFIX_MAX]

    @property
    def termination_queue(self) -> str:
        return self._queue(self.termination)

    @property
    def housekeeping_queue(self) -> str:
        return self._queue(self.housekeeping)

    def _queue(self, address: QueueAddress) -> str:
        """The name of a queue in Holdfast, which writes a dot as two underscores."""
        return address.name.removeprefix(self.prefix).replace("__", ".")

    def engine_url(self, control: str) -> str:
        """The URL of the engine that consumes both queues. `control` is that of the store for what
        workers share."""
        endpoint = self.termination.endpoint
        options = [] if endpoint is None else [f"endpoint={quote(endpoint, safe='')}"]
        options.append(f"control={quote(control, safe='')}")
        return f"sqs://{self.region}/{self.prefix}?{'&'.join(options)}"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> FleetSettings:
        """Raises ConfigError with everything that is missing or wrong."""
        source = os.environ if environ is None else environ
        return _SettingsReader(source).read()


class _SettingsReader:
    """Collects the faults of all variables before it raises."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._faults: list[str] = []

    def read(self) -> FleetSettings:
        missing = [PREFIX + name for name in REQUIRED if not self._text(name)]
        if missing:
            self._faults.append(f"not set: {', '.join(missing)}")
        termination = self._queue("TERMINATION_QUEUE_URL")
        housekeeping = self._queue("HOUSEKEEPING_QUEUE_URL")
        if termination is not None and housekeeping is not None:
            self._check_both(termination, housekeeping)
        settings: dict[str, Any] = {
            "jobs_table": self._table("JOBS_TABLE"),
            "pools_table": self._table("POOLS_TABLE"),
            "max_runtime_s": self._duration("MAX_RUNTIME", MAX_RUNTIME_S),
            "prices": self._prices("PRICES"),
            "archive": self._path("ARCHIVE"),
            "metrics_file": self._path("METRICS_FILE"),
        }
        if self._faults or termination is None or housekeeping is None:
            raise ConfigError(f"the fleet cannot start: {'; '.join(self._faults)}")
        return FleetSettings(termination=termination, housekeeping=housekeeping, **settings)

    def _text(self, name: str) -> str:
        return self._environ.get(PREFIX + name, "").strip()

    def _fault(self, name: str, expected: str) -> None:
        """Name a wrong value. A URL may hold a password: it is not repeated."""
        shown = "" if name.endswith("_URL") else f" {self._text(name)[:80]!r}"
        self._faults.append(f"{PREFIX}{name}{shown}: expected {expected}")

    def _queue(self, name: str) -> QueueAddress | None:
        text = self._text(name)
        if not text:
            return None
        try:
            address = queue_address(text, self._environ)
        except ValueError as error:
            self._fault(name, str(error))
            return None
        return address

    def _check_both(self, one: QueueAddress, other: QueueAddress) -> None:
        if (one.region, one.endpoint) != (other.region, other.endpoint):
            self._faults.append("the two queues are in different regions or at different endpoints")
        elif one.name == other.name:
            self._faults.append(f"both queue URLs name the queue {one.name}")

    def _table(self, name: str) -> str:
        text = self._text(name)
        if text and not _TABLE.match(text):
            self._fault(name, "the name of a DynamoDB table, 3 to 255 of A-Z a-z 0-9 _.-")
        return text

    def _duration(self, name: str, default: int) -> int:
        text = self._text(name)
        found = _DURATION.match(text)
        seconds = int(found[1]) * _UNITS[found[2]] if found else 0
        if text and not seconds:
            self._fault(name, "a duration above 0, e.g. 6h, 90m or 21600")
        return seconds if text else default

    def _prices(self, name: str) -> Prices:
        try:
            return msgspec.json.decode(self._text(name) or "{}", type=Prices)
        except (msgspec.MsgspecError, ValueError):
            self._fault(name, 'JSON such as {"gb_month": 0.08, "hourly": {"t4g.medium": 0.0336}}')
            return Prices()

    def _path(self, name: str) -> Path | None:
        text = self._text(name)
        if not text:
            return None
        path = Path(text)
        folder = path if name == "ARCHIVE" else path.parent
        if not folder.is_dir():
            self._fault(name, f"an existing folder: create {str(folder)[:80]!r} first")
        return path


def queue_address(url: str, environ: Mapping[str, str]) -> QueueAddress:
    """The parts of a queue URL. Raises ValueError with what was expected."""
    example = "a queue URL such as https://sqs.eu-west-1.amazonaws.com/123456789012/NAME"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError(example) from None
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.password:
        raise ValueError(f"{example}, without user and password")
    name = parts.path.rpartition("/")[2]
    if not _QUEUE.match(name):
        raise ValueError(f"{example}; no FIFO or dead-letter queue, NAME of A-Z a-z 0-9 _-")
    aws = _AWS_HOST.match(host)
    if aws is not None and port is None:
        return QueueAddress(name, aws[1], None)
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
    shown = f"[{host}]" if ":" in host else host
    return QueueAddress(
        name, region, f"{parts.scheme}://{shown}{'' if port is None else f':{port}'}"
    )
