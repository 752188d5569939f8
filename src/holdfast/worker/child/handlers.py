"""The handler of a task, and the import of the application that defines the handlers."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from holdfast.core.breaker import Breaker
from holdfast.core.limits import Limit
from holdfast.core.model import Failure, NewJob
from holdfast.core.text import kind_of
from holdfast.core.workers import TaskRecord
from holdfast.errors import ConfigError
from holdfast.worker.child.hooks import AttemptHooks
from holdfast.worker.wire import ChildReady, TaskInfo

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """The function behind a task, and the facts that its runner needs.

    `arguments` turns a payload and its content type into arguments of the function, or raises
    UsageError; in a batch task each job gives one positional argument, and the function gets the
    list of them. `result` encodes the returned value, unless that is None. `context` names the
    parameter for the Context, or the list of them in a batch task. `retry_on` None means every
    exception; `give_up_on` goes first.
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
    declared: TaskRecord | None = None
    dead: bool = False
    """It handles the dead letters of its queue."""
    retry_on: tuple[type[BaseException], ...] | None = None
    give_up_on: tuple[type[BaseException], ...] = ()
    hooks: AttemptHooks | None = None
    prepare: Callable[[Iterable[NewJob]], list[NewJob]] | None = None
    """The enqueue hooks, for follow-up jobs."""

    @property
    def info(self) -> TaskInfo:
        """The facts about the task that a supervisor needs."""
        return TaskInfo(
            self.name,
            self.batch,
            self.isolated,
            self.is_async,
            self.queue,
            self.limits,
            self.breaker,
            self.declared,
            self.dead,
        )

    def gives_up(self, error: BaseException) -> bool:
        """True if there is no further attempt after this failure."""
        if isinstance(error, self.give_up_on):
            return True
        return self.retry_on is not None and not isinstance(error, self.retry_on)


class TargetApplication(Protocol):
    """The part of an application that a worker needs."""

    handlers: dict[str, Handler]


class LoadedApplication(NamedTuple):
    """The handlers of an imported application, and the message that tells the supervisor about
    them."""

    handlers: Mapping[str, Handler]
    ready: ChildReady


class TargetStore(msgspec.Struct, frozen=True):
    """The URL of the store that an application names; `error` says why it cannot be imported."""

    url: str | None = None
    error: str = ""


def load_application(target: str) -> LoadedApplication:
    """Import the application, and check what it declares."""
    application = load_target(target)
    handlers = application.handlers
    schedules = getattr(application, "declared_schedules", None)
    ready = ChildReady(
        tuple(each.info for each in handlers.values()),
        b"" if schedules is None else msgspec.msgpack.encode(schedules),
    )
    return LoadedApplication(handlers, ready)


def load_target(target: str) -> TargetApplication:
    """Import `module:attribute` or `path/to/file.py:attribute`. Exceptions that the application
    raises while it is imported are passed on."""
    source, colon, attribute = target.rpartition(":")
    if not colon or not source or not attribute:
        raise ConfigError(
            f"{target!r} does not name an application: write module:attribute, as in tasks:app,"
            " or path/to/file.py:attribute"
        )
    module = _from_file(Path(source)) if source.endswith(".py") else _from_path(source)
    try:
        found = reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise ConfigError(f"{source} has no {attribute!r}{_candidates(module)}") from None
    if not isinstance(getattr(found, "handlers", None), dict):
        raise ConfigError(
            f"{target} is {kind_of(found)}, not a Holdfast application" + _candidates(module)
        )
    application: TargetApplication = found
    return application


def _from_path(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(
            f"{name!r} is not the name of a module; give a file with its extension,"
            " as in ./tasks.py:app"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigError(
                f"there is no module named {error.name!r} in {here} or on Python's path"
            ) from None
        raise


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r} in {Path.cwd()}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loaded = sys.modules.get(path.stem)
    if loaded is not None and _is_of(loaded, path):
        return loaded
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{str(path)!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(path.stem, None)
        raise
    return module


def _is_of(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path.resolve()


def _candidates(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if _has_handlers(value)]
    return f"; there is {', '.join(names)}" if names else ""


def _has_handlers(value: object) -> bool:
    try:
        return isinstance(getattr(value, "handlers", None), dict)
    except Exception:  # noqa: BLE001 (a proxy, such as Flask's current_app, may raise anything)
        return False


def main() -> None:
    """Entry point of `launcher.store_of`: import the application of the first argument, and write
    its `TargetStore` as one line to the descriptor of the second."""
    target, descriptor = sys.argv[1], int(sys.argv[2])
    os.set_inheritable(descriptor, False)
    try:
        store = TargetStore(getattr(load_target(target), "url", None))
    except BaseException as error:  # noqa: BLE001 (an application may even exit on import)
        from holdfast.core import failures

        trace = "".join(traceback.format_exception(error))
        failure = Failure(type=type(error).__qualname__, message=str(error), trace=trace)
        store = TargetStore(error=failures.import_error(failure))
    os.write(descriptor, msgspec.json.encode(store) + b"\n")
    # Threads that the application started must not keep this process alive.
    os._exit(0)


if __name__ == "__main__":
    main()
