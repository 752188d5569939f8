"""Task name → the function behind it, and what its runner must know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.core.breaker import Breaker
from holdfast.core.flow import Limit
from holdfast.worker.wire import TaskInfo

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """`arguments` turns a payload and its content type into what the function is called with, or
    raises UsageError; of a batch task, each job gives one positional argument, and the function
    gets the list of them. `context` names the parameter that gets the Context (a list of them in
    a batch task). `retry_on` None means every exception; `give_up_on` goes first.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    arguments: Callable[[bytes, str], Arguments]
    result: Callable[[Any], bytes | None]
    context: str | None = None
    queue: str = "default"
    batch: int = 1
    isolated: bool = False
    limits: tuple[Limit, ...] = ()
    breaker: Breaker | None = None
    retry_on: tuple[type[BaseException], ...] | None = None
    give_up_on: tuple[type[BaseException], ...] = ()

    @property
    def info(self) -> TaskInfo:
        """What a supervisor must know of it."""
        return TaskInfo(
            self.name,
            self.batch,
            self.isolated,
            self.is_async,
            self.queue,
            self.limits,
            self.breaker,
        )

    def gives_up(self, error: BaseException) -> bool:
        """Whether this failure gets no other attempt."""
        if isinstance(error, self.give_up_on):
            return True
        return self.retry_on is not None and not isinstance(error, self.retry_on)
