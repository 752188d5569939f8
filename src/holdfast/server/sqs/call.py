"""One admitted request of an SQS client, and the state that all requests of a server share.

Handlers get an `SqsCall`. `call.queue(url)` finds a queue without a store read in most calls;
`call.engine` is restricted to the caller and checks every verb: SendMessage needs the scope
`produce`, receiving and deleting messages `consume`, changes of queues `operate`, and DeleteQueue
`admin`. Account, region, URLs and ARNs are those of the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from holdfast.app.application import Holdfast
from holdfast.config import SETTINGS
from holdfast.engines.base import Engine
from holdfast.errors import ConfigError
from holdfast.ops.settings import read_settings
from holdfast.process import wall_ms
from holdfast.server.access.admission import ApiCall
from holdfast.server.access.caller import Caller
from holdfast.server.sqs.catalog import KnownQueue, QueueCatalog
from holdfast.server.sqs.errors import queue_does_not_exist
from holdfast.server.sqs.queue_attributes import QueueArn
from holdfast.server.sqs.shapes import queue_of
from holdfast.server.state import DEFAULT_NAMESPACE, ServerState

DEFAULT_ACCOUNT: Final = "000000000000"
REGION_SETTING: Final = "sqs-region"

Undo = Callable[[], Awaitable[None]]


class SqsState:
    """The state of the SQS endpoint of one server. `wall_ms` stamps records. With `is_strict`, a
    queue can be purged, or recreated after it was deleted, only once in 60 seconds."""

    def __init__(self, server: ServerState, wall_ms: Callable[[], int] = wall_ms) -> None:
        self.server = server
        self.wall_ms = wall_ms
        self.is_strict: bool = server.settings.sqs == "strict"
        self._region = ""
        self._catalogs: dict[str, QueueCatalog] = {}

    async def default_region(self) -> str:
        """The region whose queues have plain names. Read once: a change would rename queues."""
        if not self._region:
            settings = await read_settings(self.server.app.engine)
            try:
                self._region = settings.value_or_default(REGION_SETTING)
            except ConfigError:
                self._region = SETTINGS[REGION_SETTING].default
        return self._region

    async def catalog(self, namespace: str, app: Holdfast) -> QueueCatalog:
        """The catalog of the queues of a namespace."""
        known = self._catalogs.get(namespace)
        if known is None:
            region = await self.default_region()
            catalog = QueueCatalog(lambda: app.engine, account_of(namespace), region)
            known = self._catalogs.setdefault(namespace, catalog)
        return known


class SqsCall(Struct, kw_only=True):
    """`base_url` is the URL of the server by the request's Host header, without a slash at its end.
    `undo` undoes an answer that the client never received. `counted` are the counts of the
    request by queue, which are recorded once it is answered."""

    api: ApiCall
    state: SqsState
    catalog: QueueCatalog
    account: str
    region: str
    default_region: str
    base_url: str
    undo: Undo | None = None
    counted: dict[str, dict[str, int]] = {}

    @property
    def engine(self) -> Engine:
        """The engine of the namespace, restricted to the caller."""
        return self.api.engine

    @property
    def store(self) -> Engine:
        """The engine without restrictions. Check the caller before using it."""
        return self.api.app.engine

    @property
    def caller(self) -> Caller:
        return self.api.caller

    def count(self, queue: str, **counts: int) -> None:
        """Add counts of `telemetry.meter.SQS_COUNTERS` to a Holdfast queue."""
        self.counted.setdefault(queue, {}).update(counts)

    def now_ms(self) -> int:
        """The time of day, for timestamps that clients read."""
        return self.state.wall_ms()

    async def queue(self, url: str) -> KnownQueue:
        """The queue with this URL, at most a second old. Raises QueueDoesNotExist, also for a queue
        outside the caller's prefix."""
        path = queue_of(url)
        if path.account not in (None, self.account):
            raise queue_does_not_exist()
        return await self.queue_named(path.name)

    async def queue_named(self, name: str) -> KnownQueue:
        """The queue of this account and region with this name. Raises QueueDoesNotExist."""
        known = await self.catalog.find(self.region, name)
        if known is None or not self.may_see(known.queue):
            raise queue_does_not_exist()
        return known

    def may_see(self, queue: str) -> bool:
        """True if the Holdfast queue is within the caller's prefix."""
        return not self.caller.prefix or self.caller.owns(queue)

    def url_of(self, name: str) -> str:
        """The URL of a queue."""
        return f"{self.base_url}/{self.account}/{name}"

    def arn_of(self, name: str) -> QueueArn:
        """The ARN of a queue of this account and region."""
        return QueueArn(self.region, self.account, name)


def namespace_of(account: str) -> str:
    """The namespace of an account."""
    return DEFAULT_NAMESPACE if account == DEFAULT_ACCOUNT else account


def account_of(namespace: str) -> str:
    """The account of a namespace, the reverse of `namespace_of`. A namespace whose name is not an
    account has none: the result is its name."""
    return DEFAULT_ACCOUNT if namespace == DEFAULT_NAMESPACE else namespace
