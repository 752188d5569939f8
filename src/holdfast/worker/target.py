"""`module:attribute` or `path/to/file.py:attribute` → the application it names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Protocol

from holdfast.errors import ConfigError
from holdfast.worker.handlers import Handler


class Application(Protocol):
    """As much of an application as a worker needs."""

    handlers: dict[str, Handler]


def load_target(target: str) -> Application:
    """Import it. What the application itself raises while it is imported comes through as it is."""
    source, colon, attribute = target.rpartition(":")
    if not colon or not source or not attribute:
        raise ConfigError(
            f"{target!r} names no application: write module:attribute, as in tasks:app,"
            " or path/to/file.py:attribute"
        )
    module = _from_file(Path(source)) if source.endswith(".py") else _from_path(source)
    try:
        found = reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise ConfigError(f"{source} has no {attribute!r}{_candidates(module)}") from None
    if not isinstance(getattr(found, "handlers", None), dict):
        raise ConfigError(
            f"{target} is a {type(found).__name__}, not a Holdfast application"
            + _candidates(module)
        )
    application: Application = found
    return application


def _from_path(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(
            f"{name!r} is not the name of a module; a file is named with its ending,"
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
                f"there is no module named {error.name!r} in {here} or where Python looks"
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
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(getattr(value, "handlers", None), dict)
    ]
    return f"; there is {', '.join(names)}" if names else ""
