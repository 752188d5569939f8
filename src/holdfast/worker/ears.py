"""Who hears from a crew what becomes of the jobs."""

from __future__ import annotations

from typing import Protocol

from holdfast.core.model import Failure, Note
from holdfast.worker.hand import Held
from holdfast.worker.wire import Ending, TaskInfo


class Ears(Protocol):
    """The supervisor, and in tests whoever listens."""

    def ended(self, held: Held, ending: Ending) -> None: ...

    def crashed(self, held: Held, failure: Failure, *, alone: bool) -> None: ...

    def noted(self, held: Held, note: Note) -> None: ...

    def learned(self, tasks: dict[str, TaskInfo]) -> None: ...

    def broken(self, failure: Failure) -> None: ...
