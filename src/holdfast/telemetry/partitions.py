"""Tells when a partition is shut out and when it is back, as this process sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.telemetry.meter import Meter
from holdfast.telemetry.notable import Kind, Notable


class View(Protocol):
    """A partition as its engine shows it."""

    @property
    def name(self) -> str: ...
    @property
    def out_ms(self) -> int | None: ...
    @property
    def text(self) -> str: ...


class Partitions:
    """`store` is any engine: most have none."""

    def __init__(self, store: object) -> None:
        self._views: Callable[[], Sequence[View]] | None = getattr(store, "partitions", None)
        self._out: frozenset[str] = frozenset()

    def look(self, meter: Meter) -> None:
        if self._views is None:
            return
        views = self._views()
        out = frozenset(view.name for view in views if view.out_ms is not None)
        for view in views:
            if view.name in out - self._out:
                meter.notables.add(Notable(kind=Kind.PARTITION_OUT, name=view.name, text=view.text))
            elif view.name in self._out - out:
                meter.notables.add(Notable(kind=Kind.PARTITION_BACK, name=view.name))
        self._out = out
