"""The pause record of a queue: who paused it, when and why. Informational only: the queue's own
`paused` setting decides. Pure."""

from __future__ import annotations

import msgspec

from holdfast.core.model import Record

KIND = "pause"
"""The record kind; the key is the queue's name."""


class Pause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The person who paused a queue, the time and the reason. A pause that is `over` is kept, so
    that an observer who polls does not miss it."""

    by: str = ""
    text: str = ""
    at: int | None = None
    over: bool = False


def pause_of(record: Record) -> Pause:
    """The pause in a record; an empty one if the record cannot be decoded."""
    try:
        return msgspec.json.decode(record.value or b"", type=Pause)
    except msgspec.DecodeError:
        return Pause()
