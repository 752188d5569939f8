"""How a call ended, as it is for each of its jobs."""

from __future__ import annotations

from holdfast.core.model import FailureKind
from holdfast.worker.calls import Placed
from holdfast.worker.hand import Held
from holdfast.worker.wire import AskedCancel, AskedRelease, Ending, Raised


def own_ending(placed: Placed, held: Held, ending: Ending) -> Ending:
    """Who was stopped only because another job of its batch was, has not been cancelled."""
    if placed.cancelled and isinstance(ending, AskedCancel) and not held.cancel_told:
        return AskedRelease("another job of its batch was stopped", output=ending.output)
    return ending


def is_timeout(ending: Ending) -> bool:
    return isinstance(ending, Raised) and ending.failure.kind is FailureKind.TIMEOUT
