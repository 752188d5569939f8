"""The queues of one namespace as one connection last read them.

`hf_meta.revision` grows at every change of a queue, so a look at one number says whether the
copy is still true. A queue without a name is being dropped, and its jobs are as good as gone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import apsw
import msgspec

from holdfast.core.model import Queue


class Line(NamedTuple):
    """A queue and the number that stands for it in the store. Its jobs are in lanes, some or all,
    if it is `laned`; not all of them are in the right one yet while it is `unsorted`."""

    id: int
    queue: Queue
    laned: bool
    unsorted: bool


class Catalog:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._revision = -1
        self.namespace_id = 0
        self.lines: dict[str, Line] = {}
        self.names: dict[int, str] = {}
        self.is_dropping = False

    def refresh(self, connection: apsw.Connection, revision: int) -> None:
        """Read the queues again if they are of another revision."""
        if revision != self._revision:
            self.reload(connection)

    def reload(self, connection: apsw.Connection) -> None:
        """One statement each for what must agree; a change in between shows as a new revision."""
        self._revision = connection.execute("SELECT revision FROM hf_meta").get
        self.namespace_id = connection.execute(
            "SELECT id FROM hf_namespaces WHERE name = ?", (self._namespace,)
        ).get
        rows: Any = connection.execute(
            "SELECT q.id, q.name, q.settings, f.sorting FROM hf_queues q"
            " LEFT JOIN hf_flows f ON f.queue = q.id WHERE q.ns = ?",
            (self.namespace_id,),
        ).fetchall()
        lines = [_line(id_, settings, sorting) for id_, name, settings, sorting in rows if name]
        self.lines = {line.queue.name: line for line in lines}
        self.names = {line.id: line.queue.name for line in lines}
        self.is_dropping = len(lines) < len(rows)

    def distrust(self) -> None:
        """What was read may have been rolled back."""
        self._revision = -1


def _line(id: int, settings: bytes, sorting: str | None) -> Line:
    queue = decode_queue(settings)
    laned = bool(queue.limits) or queue.fairness != "off"
    return Line(id, queue, laned, sorting is not None)


def encode_queue(queue: Queue) -> bytes:
    return msgspec.json.encode(queue)


def decode_queue(settings: bytes) -> Queue:
    return _QUEUE.decode(settings)


_QUEUE = msgspec.json.Decoder(Queue)
