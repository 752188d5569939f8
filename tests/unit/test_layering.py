"""Who may import whom: the layers of the package, and where third-party code may appear."""

import ast
import sys
from collections.abc import Iterator

import pytest

from tests.sources import Source, is_within, read_all

ENGINES = ("memory", "sqlite", "postgres", "sqs", "rabbitmq", "remote")
COMPOSITIONS = ("observed", "coalesced", "partitioned", "brokered")

# Each part of the package, and the other parts it may import. The longest name that fits counts.
FRONT = ("app", "config", "core", "durations", "engines.base", "errors", "events", "options")
LAYERS: dict[str, tuple[str, ...]] = {
    "": (
        *("app", "blocking", "core", "engines.base", "errors", "events", "handles", "outcomes"),
        *("tasks", "upkeep", "worker"),
    ),
    "errors": (),
    "durations": ("errors",),
    "backoffs": ("core", "durations", "errors"),
    "rates": ("core", "durations", "errors"),
    "breakers": ("core", "durations", "errors"),
    "options": ("backoffs", "core", "durations", "errors"),
    "bulk": ("core", "engines.base", "engines.parts", "errors", "options", "upkeep"),
    "batches": ("app", "core", "engines.base", "errors", "options"),
    "flows": ("app", "batches", "core", "engines.base", "limiting", "options", "rates"),
    "limiting": ("core", "engines.base", "errors", "options"),
    "outcomes": ("durations", "errors"),
    "loops": ("errors",),
    "home": ("core", "engines.base", "errors", "loops"),
    "leasing": ("core", "durations", "engines.base", "errors", "options"),
    "hints": ("errors",),
    "signatures": ("core", "errors", "hints", "worker"),
    "handles": ("core", "durations", "errors", "tasks"),
    "using": (*FRONT, "handles", "tasks"),
    "tasks": (*FRONT, "breakers", "handles", "rates", "signatures", "upkeep", "using", "worker"),
    "starting": ("app", "errors", "worker"),
    "core": ("durations", "errors"),
    "events": ("core", "errors"),
    "config": ("core", "durations", "engines.base", "errors"),
    "engines": ("core", "engines", "errors"),
    "engines.remote": ("core", "engines", "errors", "tracing"),
    "tracing": ("core", "engines.base", "errors"),
    **{
        f"engines.{name}": ("core", "engines.base", "engines.parts", "errors", "events")
        for name in COMPOSITIONS
    },
    "worker": ("core", "engines.base", "errors", "events", "limiting", "outcomes", "tracing"),
    "logs": ("core",),
    "worker.main": ("", "app", "core", "errors", "logs", "loops", "tracing", "worker"),
    "demo": ("app", "outcomes", "worker"),
    "upkeep": ("core", "durations", "engines.base", "engines.parts", "errors", "events"),
    "telemetry": ("config", "core", "engines.base", "errors", "events", "upkeep"),
    "alerts": (
        *("config", "core", "durations", "engines.base", "errors", "events", "telemetry"),
        *("upkeep", "worker"),
    ),
    "app": (
        *FRONT[1:],
        *(
            "engines",
            "flows",
            "home",
            "limiting",
            "leasing",
            "starting",
            "tasks",
            "telemetry",
            "tracing",
            "worker",
            "upkeep",
        ),
    ),
    "blocking": (*FRONT, "batches", "loops", "upkeep", "worker"),
    "checkup": ("core", "durations", "engines.base", "errors", "upkeep", "worker"),
    "dead_letters": ("bulk", "core", "engines.base"),
    "moving": ("config", "core", "engines.base", "errors", "explaining", "upkeep"),
    "scaling": ("core", "engines.base", "errors", "worker"),
    "explaining": ("core", "engines.base", "errors", "worker"),
    "chaos": ("app", "core", "engines.base", "errors", "events", "upkeep", "worker"),
    "django": ("", *FRONT, "engines.url", "outcomes", "tasks", "worker"),
    "queues": ("core", "engines.base", "explaining", "limiting", "options"),
    "standing": ("alerts", "core", "engines.base", "upkeep", "worker"),
    "retrying": ("core", "durations", "errors", "rates", "upkeep"),
    "scheduling": (*("config", "core", "durations", "engines.base", "errors", "newjob", "upkeep"),),
    "acting": ("core", "engines.base", "errors"),
    "filters": ("core", "durations", "errors", "upkeep"),
    "reading": ("core", "engines.base", "views"),
    "views": (
        *("alerts", "breakers", "checkup", "config", "core", "dead_letters", "durations"),
        *("errors", "rates", "scaling", "standing", "upkeep", "worker"),
    ),
    "newjob": ("backoffs", "config", "core", "durations", "errors", "options", "views"),
    "server.main": ("app", "engines.url", "errors", "logs", "loops", "server", "tracing"),
    "server": (
        *("", *FRONT, "checkup", "config", "explaining", "newjob", "upkeep", "views", "worker"),
        *("alerts", "batches", "bulk", "dead_letters", "limiting", "queues", "rates", "retrying"),
        *("scaling", "scheduling", "standing", "acting", "filters", "reading", "telemetry"),
        "tracing",
        *("engines.parts", "engines.url", "engines.verbs"),
    ),
    "cli": (
        "",
        *FRONT,
        "engines.url",
        "acting",
        "alerts",
        "backoffs",
        "batches",
        "bulk",
        "breakers",
        "rates",
        "checkup",
        "dead_letters",
        "chaos",
        "explaining",
        "filters",
        "moving",
        "scaling",
        "logs",
        "newjob",
        "queues",
        "reading",
        "retrying",
        "scheduling",
        "standing",
        "tracing",
        "views",
        "worker",
        "upkeep",
        "blocking",
        "server",
        "fleet",
    ),
    "fleet": FRONT,
}

# Third-party code, and the only places where it may appear. Nothing else may be imported.
PLACES: dict[str, tuple[str, ...]] = {
    "msgspec": ("",),
    "anyio": ("engines", "worker", "upkeep", "app", "blocking", "server", "cli", "fleet"),
    "apsw": ("engines.sqlite",),
    "asyncpg": ("engines.postgres",),
    "psycopg": ("engines.postgres",),
    "sqlalchemy": ("engines.postgres",),
    "django": ("engines.postgres", "django"),
    "django_tasks": ("django",),
    "asgiref": ("django",),
    "boto3": ("engines.sqs", "fleet.aws"),
    "botocore": ("engines.sqs", "fleet.aws"),
    "aio_pika": ("engines.rabbitmq",),
    "aiormq": ("engines.rabbitmq",),
    "httptools": ("engines.remote",),
    "cronsim": ("upkeep",),
    "uuid_utils": ("engines", "options", "worker.main"),
    "cyclopts": ("cli",),
    "rich": ("cli",),
    "uvloop": ("cli", "loops", "worker"),
    "h11": ("server",),
    "opentelemetry": ("tracing",),
    "prometheus_client": ("server",),
    "uvicorn": ("server",),
}

# The one thing of the tests that people run too: chaos on a private server.
TESTING_USED = {"chaos.places": "testing.services"}

# The core decides; it has no clock, no dice, no files, no threads and no voice.
IMPURE = """
    asyncio http io logging multiprocessing os pathlib random secrets shutil signal socket
    sqlite3 subprocess tempfile threading time urllib uuid zoneinfo
"""


def test_every_import_is_allowed() -> None:
    faults = [fault for source in read_all() for fault in import_faults(source)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("core.lifecycle", "import time"),
        ("core.lifecycle", "from holdfast.engines.base import Engine"),
        ("core.model", "from holdfast import app"),
        ("engines.sqlite.schema", "from holdfast.engines.postgres import schema"),
        ("engines.sqlite.schema", "from holdfast.engines import memory"),
        ("engines.sqlite.schema", "from ..memory import store"),
        ("engines.coalesced", "from holdfast.engines.memory import MemoryEngine"),
        ("engines.memory.engine", "import apsw"),
        ("engines.sqlite.schema", "import sqlite3"),
        ("upkeep.reaper", "from holdfast.engines.url import open_engine"),
        ("app", "def f():\n    from holdfast.engines.sqlite import SqliteEngine"),
        ("app", "from holdfast.testing.clock import ManualClock"),
        ("engines.url", "from holdfast.app import Holdfast"),
        ("engines.postgres.engine", "import requests"),
        ("worker.attempt", "import pickle"),
        ("novelty", "from holdfast.core import model"),
    ],
)
def test_a_forbidden_import_is_found(module: str, statement: str) -> None:
    assert import_faults(Source(module, statement))


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("core.lifecycle", "from holdfast.core import limits, model"),
        ("engines.sqlite.schema", "import apsw\nfrom holdfast.engines.base import Engine"),
        ("engines.sqlite.engine", "from . import schema"),
        ("engines.url", "def f():\n    from holdfast.engines.memory import MemoryEngine"),
        ("testing.contract.laws", "import pytest\nfrom holdfast.engines.sqlite import engine"),
        ("app", "from holdfast.engines import base, coalesced, url"),
    ],
)
def test_an_allowed_import_is_not_found(module: str, statement: str) -> None:
    assert not import_faults(Source(module, statement))


def import_faults(source: Source) -> list[str]:
    if source.is_in("testing"):
        return []
    return [
        f"holdfast.{source.module} line {line}: {fault}"
        for line, target in imports(source)
        if (fault := find_fault(source, target))
    ]


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Each imported thing, in full: a name from a package may itself be a module."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                base = absolute(source, node)
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
            case _:
                pass


def absolute(source: Source, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    here = ["holdfast", *filter(None, source.module.split("."))]
    up = node.level - (1 if source.is_package else 0)
    return ".".join([*here[: len(here) - up], *filter(None, [node.module])])


def find_fault(source: Source, target: str) -> str | None:
    top = target.partition(".")[0]
    if top == "holdfast":
        return find_layer_fault(source.module, target.removeprefix("holdfast").lstrip("."))
    if top in ("pickle", "shelve", "marshal", "dill", "cloudpickle"):
        return f"{top} runs whatever it reads: it is never used"
    if top == "sqlite3":
        return "the standard library's SQLite may corrupt a file in WAL mode: use apsw"
    if top in sys.stdlib_module_names:
        impure = source.is_in("core") and top in IMPURE.split()
        return f"the core is pure and must not import {top}" if impure else None
    if top not in PLACES:
        return f"{top} is not among the dependencies listed in {__name__}"
    if "" not in PLACES[top] and not source.is_in(*PLACES[top]):
        return f"{top} belongs only in {', '.join(PLACES[top])}"
    return None


def find_layer_fault(module: str, target: str) -> str | None:
    if is_within(target, "testing"):
        if any(module == user and is_within(target, used) for user, used in TESTING_USED.items()):
            return None
        return "nothing imports holdfast.testing"
    owner = layer_of(module)
    if owner is None:
        return f"holdfast.{module} is in no layer: give it a place in {__name__}"
    if is_within(target, owner) and owner not in ("", "engines"):
        return None
    engine, other = concrete_engine(module), concrete_engine(target)
    if other and other != engine and module != "engines.url":
        return f"only engines.url knows the concrete engines, and this imports {other}"
    if not any(reaches(target, allowed) for allowed in LAYERS[owner]):
        return f"{owner or 'the root'} must not import holdfast.{target}"
    return None


def layer_of(module: str) -> str | None:
    fitting = [name for name in LAYERS if name and is_within(module, name)]
    if not module:
        return ""
    return max(fitting, key=len, default=None)


def reaches(target: str, allowed: str) -> bool:
    """The root gives only its own names, such as the version; a part gives all that is below."""
    if allowed == "":
        return "." not in target and layer_of(target) is None
    return is_within(target, allowed)


def concrete_engine(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "engines" and parts[1:] and parts[1] in ENGINES else None
