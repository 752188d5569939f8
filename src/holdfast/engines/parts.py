"""Calls that take more than one transaction: what they say if one fails after another committed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.errors import EngineUnavailable, OutcomeUnknown, StorageFull, UsageError


@contextmanager
def told_in_part(happened: Callable[[], object]) -> Iterator[None]:
    """What says that nothing was changed is an unknown outcome if `happened` says that something
    was. Other errors say nothing about it, and stay as they are."""
    try:
        yield
    except (EngineUnavailable, StorageFull, UsageError) as error:
        if not happened():
            raise
        said = re.sub("[;:] nothing was changed", "", str(error))
        raise OutcomeUnknown(
            f"{said}; a part of it had happened: repeat with the same ids"
        ) from error
