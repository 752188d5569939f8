"""What is known of a queue's pause beside that it is paused: who did it, when, and why. Pure."""

from __future__ import annotations

import msgspec

from holdfast.core.model import Record

KIND = "pause"
"""Under the name of the queue. It only tells: what counts is the queue's own setting."""


class Pause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """By whom a queue was paused, when, and why. One that is `over` stays, so that who looks only
    now and then sees that it was."""

    by: str = ""
    text: str = ""
    at: int | None = None
    over: bool = False


def pause_of(record: Record) -> Pause:
    """Nothing of what cannot be read."""
    try:
        return msgspec.json.decode(record.value or b"", type=Pause)
    except msgspec.DecodeError:
        return Pause()
