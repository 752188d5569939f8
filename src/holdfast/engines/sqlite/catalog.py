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
    """A queue and the number that stands for it in the store."""

    id: int
    queue: Queue


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
            "SELECT id, name, settings FROM hf_queues WHERE ns = ?", (self.namespace_id,)
        ).fetchall()
        lines = [Line(id_, decode_queue(settings)) for id_, name, settings in rows if name]
        self.lines = {line.queue.name: line for line in lines}
        self.names = {line.id: line.queue.name for line in lines}
        self.is_dropping = len(lines) < len(rows)

    def distrust(self) -> None:
        """What was read may have been rolled back."""
        self._revision = -1


def encode_queue(queue: Queue) -> bytes:
    return msgspec.json.encode(queue)


def decode_queue(settings: bytes) -> Queue:
    return _QUEUE.decode(settings)


_QUEUE = msgspec.json.Decoder(Queue)
