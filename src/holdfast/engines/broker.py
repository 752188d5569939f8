"""Message brokers, as `brokered` and gates use them: two small interfaces, without a driver.

A `Broker` carries ids of jobs and nothing else; the ledger knows the jobs. Its messages may be
lost, duplicated, late or reordered. A `BrokerLink` moves whole messages of other programs, for
gates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, runtime_checkable

import msgspec


class JobMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The message for one job that is addressed to a worker. It expires with the job."""

    id: str
    queue: str
    expires_ms: int | None = None


class DeadMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a worker's queue at the broker gave up, for the dead-letter handler.

    `id` is None if the message is not one of ours; `body` and `headers` are then all there is.
    `history` is what the broker recorded about each time that it was given up, as JSON values.
    """

    tag: int
    """Identifies the delivery to the broker that made it."""
    id: str | None
    queue: str
    """The queue of Holdfast that the message was for; "" if unknown."""
    reason: str = ""
    dead_at: int | None = None
    """When the broker gave it up, by the broker's clock."""
    history: tuple[dict[str, object], ...] = ()
    body: bytes = b""
    content_type: str = ""
    headers: dict[str, str] = {}


class WorkerQueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's queue at the broker."""

    queue: str
    messages: int
    consumers: int


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a broker: `error` is why it cannot be reached, "" if it can. `warnings` are
    problems that an operator should fix, such as a queue with other arguments."""

    error: str = ""
    version: str = ""
    warnings: tuple[str, ...] = ()
    dead_messages: int | None = None
    """Messages that wait for the dead-letter handler."""


class Broker(Protocol):
    """Carries ids of jobs between processes. No call waits for an answer of the broker or raises
    because it is unreachable, except where stated: the ledger's polling finds every job.
    """

    async def open(self, namespace: str, wake: Callable[[], None]) -> None:
        """Start to connect, without waiting for it. Idempotent. `wake` is called on the event loop
        whenever jobs may be due: at a notification, a delivery and a new connection."""

    async def close(self) -> None:
        """Flush what is still to be sent, for a moment, and disconnect. Idempotent."""

    def notify(self, queues: Collection[str]) -> None:
        """Make the waiting leases of these queues look again, in every process; of all queues if
        empty. At most one message per queue is in flight; further calls are merged into the next.
        """

    def deliver(self, messages: Sequence[JobMessage]) -> None:
        """Put a message for each job in its worker's queue: persistent and confirmed. Unconfirmed
        ones are sent again after a reconnect."""

    def listen(self, queues: Collection[str]) -> None:
        """Receive the notifications of these queues from now on and, of those that are a worker's
        own, the messages."""

    def received(self, queues: Collection[str]) -> list[str]:
        """The ids in messages of these worker queues that are not acknowledged yet."""

    def acknowledge(self, ids: Collection[str]) -> None:
        """Acknowledge the received messages of these jobs; others are ignored."""

    async def take_dead(self, limit: int, wait_ms: int) -> list[DeadMessage]:
        """Dead messages that no other caller has taken; empty after `wait_ms`. Raises
        EngineUnavailable if the broker cannot be reached."""

    async def settle_dead(
        self, done: Sequence[DeadMessage], again: Sequence[DeadMessage] = ()
    ) -> None:
        """Acknowledge the messages in `done` and put those in `again` back. Messages of a lost
        connection are ignored: the broker offers them again."""

    async def worker_queues(self, names: Collection[str]) -> list[WorkerQueueView]:
        """Those of these worker queues that exist at the broker. Raises EngineUnavailable."""

    async def status(self) -> BrokerStatus:
        """The state of the broker now; never raises because it is unreachable."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of another program. `headers` hold its own headers as text; values that are no text
    are JSON."""

    tag: int = 0
    """Identifies the delivery to the link that received it."""
    body: bytes = b""
    content_type: str = ""
    message_id: str | None = None
    correlation_id: str | None = None
    content_encoding: str | None = None
    type: str | None = None
    reply_to: str | None = None
    headers: dict[str, str] = {}
    priority: int | None = None
    expires_ms: int | None = None
    exchange: str = ""
    routing_key: str = ""
    group: str | None = None
    tenant: str | None = None
    properties: dict[str, str] = {}
    """Further facts that the broker knows, such as `sent_at` and `receive_count` of SQS."""
    is_redelivered: bool = False


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The broker's answer to one published message; `error` is "" if it is stored, else the reason.
    With `is_unknown` the message may or may not be stored. With `is_unsent` it was not sent, and it
    is not at fault: the broker cannot be reached, or does not accept the link's credentials."""

    error: str = ""
    is_unknown: bool = False
    is_unsent: bool = False


class BrokerLink(Protocol):
    """A connection of gates to a broker. Every call raises EngineUnavailable if the broker cannot
    be reached, and ConfigError for what a person must fix, such as a missing source."""

    @property
    def limit_is_costly(self) -> bool:
        """Whether the broker counts messages as returned when the limit of `receive` changes."""

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Disconnect; unacknowledged messages return to their source. Idempotent."""

    async def receive(self, source: str, limit: int, wait_ms: int) -> list[Message]:
        """Messages of a source, up to `limit` in all that are not acknowledged yet; empty after
        `wait_ms`. The rest stays at the broker."""

    async def acknowledge(self, source: str, messages: Sequence[Message]) -> None:
        """Remove messages from their source."""

    async def give_back(self, source: str, messages: Sequence[Message]) -> None:
        """Return messages to their source, to be received again."""

    async def pause(self, source: str) -> None:
        """Stop receiving: messages that are not acknowledged return to their source."""

    async def postpone(self, source: str, delay_ms: int) -> bool:
        """Return the messages that are not acknowledged to their source, to be received again
        after this time. False if the broker cannot do that: they are kept."""

    async def publish(self, messages: Sequence[Message]) -> list[Published]:
        """Publish each message to its exchange and routing key, and wait until it is stored. An
        unroutable message is an error."""

    async def status(self) -> BrokerStatus:
        """The state of the broker now; never raises because it is unreachable."""


@runtime_checkable
class QueueLink(BrokerLink, Protocol):
    """A link to a broker whose queues can be listed, and whose messages can be sent on unchanged
    from one queue to another, for distributions."""

    async def waiting(self, pattern: str) -> dict[str, int]:
        """The queues that match the pattern, with the number of messages that wait in each, as far
        as the broker knows it."""

    async def depth(self, queue: str) -> int:
        """The number of messages that wait in a queue, as far as the broker knows it."""

    async def take(self, source: str, limit: int) -> list[Message]:
        """At most `limit` messages of a source that are there now."""

    async def forward(
        self, target: str, messages: Sequence[tuple[str, Message]]
    ) -> list[Published]:
        """Send messages that this link received on to another queue, unchanged and in this order,
        each with its source. They stay in their source until they are acknowledged."""


class BrokerScheme(Protocol):
    """How a package opens the broker of a URL scheme: the object behind an entry point. Both raise
    ConfigError if the URL is wrong."""

    def open_broker(self, url: str) -> Broker:
        """A broker for `brokered`, not yet opened."""

    def open_link(self, url: str) -> BrokerLink:
        """A link for gates, not yet opened."""
