"""Allowed imports: the layers of the package, and where third-party code may appear."""

import sys

import pytest

import holdfast
from tests.sources import Source, imports, is_within, read_all

ENGINES = ("memory", "sqlite", "postgres", "sqs", "rabbitmq", "remote")

# From the bottom to the top: some parts of the package, and the other parts that these may import.
# Each of those is in a row above, so that there is no cycle. The longest name that fits counts.
# A process that is started by `python -m` is a program: nothing imports it.
PROGRAMS = (
    *("cli", "__main__", "worker.child.template"),
    *("worker.supervisor.__main__", "worker.supervisor.main"),
)
LAYERS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("", "errors", "events"), ()),
    (("core",), ("errors",)),
    (("process",), ("core", "errors")),
    (("notation",), ("core", "errors", "process")),
    (("config",), ("core", "errors", "notation")),
    (("engines",), ("core", "errors", "events", "process")),
    (("tracing",), ("core", "engines", "errors")),
    (("ops",), ("config", "core", "engines", "errors", "events", "notation", "process")),
    (
        ("gates", "telemetry", "upkeep"),
        ("core", "engines", "errors", "events", "notation", "ops", "process"),
    ),
    (
        ("worker",),
        ("core", "engines", "errors", "events", "notation", "ops", "process", "tracing"),
    ),
    (
        ("alerts",),
        (
            *("config", "core", "engines", "errors", "events", "notation"),
            *("ops", "process", "telemetry", "upkeep", "worker"),
        ),
    ),
    (
        ("app",),
        (
            *("core", "engines", "errors", "events", "gates", "notation", "ops"),
            *("process", "telemetry", "tracing", "upkeep", "worker"),
        ),
    ),
    (("django", "integrations"), ("app", "core", "engines", "errors", "notation", "worker")),
    (
        ("server",),
        (
            *("", "alerts", "app", "config", "core", "engines", "errors", "notation"),
            *("ops", "process", "telemetry", "tracing", "worker"),
        ),
    ),
    (
        PROGRAMS,
        (
            *("", "alerts", "app", "config", "core", "engines", "errors", "events", "gates"),
            *("notation", "ops", "process", "server", "tracing", "upkeep", "worker"),
        ),
    ),
)
ROWS_MAX = 15

# Outside the engines only these of their modules are used, and only these know the others.
PUBLIC_ENGINE_MODULES: dict[str, tuple[str, ...]] = {
    "engines.base": ("",),
    "engines.extras": ("",),
    "engines.broker": ("",),
    "engines.sqs.delivery": ("",),
    "engines.wrapper": ("tracing", "server.access", "server.live"),
    "engines.registry": ("app", "cli", "django", "gates", "server"),
    "engines.coalesced": ("app",),
    "engines.observed": ("app",),
    "engines.wire": ("server.rest",),
}

# Third-party code, and the only places where it may appear. Nothing else may be imported.
PLACES: dict[str, tuple[str, ...]] = {
    "msgspec": ("",),
    "anyio": ("engines", "worker", "upkeep", "app", "server", "cli", "fleet"),
    "apsw": ("engines.sqlite",),
    "asyncpg": ("engines.postgres",),
    "psycopg": ("engines.postgres",),
    "sqlalchemy": ("engines.postgres", "integrations.sqlalchemy"),
    "sentry_sdk": ("integrations.sentry",),
    "structlog": ("integrations.structlog",),
    "fastapi": ("integrations.fastapi",),
    "flask": ("integrations.flask",),
    "django": ("engines.postgres", "django"),
    "django_tasks": ("django",),
    "asgiref": ("django",),
    "boto3": ("engines.sqs", "fleet.aws"),
    "botocore": ("engines.sqs", "fleet.aws"),
    "aio_pika": ("engines.rabbitmq",),
    "aiormq": ("engines.rabbitmq",),
    "pamqp": ("engines.rabbitmq",),
    "httptools": ("engines.remote",),
    "cronsim": ("ops",),
    "uuid_utils": ("engines", "notation", "worker"),
    "cyclopts": ("cli", "fleet.commands"),
    "rich": ("cli",),
    "pydantic": ("app.pydantic_types",),
    "uvloop": ("process",),
    "h11": ("server",),
    "opentelemetry": ("tracing",),
    "prometheus_client": ("server",),
    "uvicorn": ("server",),
}

# The second package is an application like any other: it uses the public names only.
FLEET = "fleet"

# The one part of the conformance suite that users run: `holdfast chaos`.
CONFORMANCE_USERS = ("cli",)

# The core decides; it has no clock, no dice, no files, no threads and no voice.
IMPURE = """
    asyncio http io logging multiprocessing os pathlib random secrets shutil signal socket
    sqlite3 subprocess tempfile threading time urllib uuid zoneinfo
"""


def test_the_table_is_short_and_has_no_cycle() -> None:
    assert len(LAYERS) <= ROWS_MAX
    below: set[str] = set()
    for parts, allowed in LAYERS:
        assert set(allowed) <= below, f"{parts} may import only what is above it in the table"
        below.update(parts)


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
        ("upkeep.reaper", "from holdfast.engines.registry import open_engine"),
        ("app", "def f():\n    from holdfast.engines.sqlite import SQLiteEngine"),
        ("app", "from holdfast.testing.clock import ManualClock"),
        ("engines.registry", "from holdfast.app.application import Holdfast"),
        ("engines.postgres.engine", "import requests"),
        ("worker.child.attempt", "import pickle"),
        ("ops.jobs", "from holdfast.worker import launcher"),
        ("ops.jobs", "from holdfast.engines.wire import About"),
        ("novelty", "from holdfast.core import model"),
        ("ops.jobs", "from holdfast_fleet import model"),
        ("fleet.tasks", "from holdfast.core import model"),
        ("fleet.tasks", "import boto3"),
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
        ("engines.registry", "def f():\n    from holdfast.engines.memory import MemoryEngine"),
        ("conformance.contract.laws", "import pytest\nfrom holdfast.engines.sqlite import engine"),
        ("app", "from holdfast.engines import base, coalesced, registry"),
        ("fleet.tasks", "from holdfast import Holdfast\nfrom holdfast_fleet.model import Pool"),
        ("fleet.aws", "import boto3\nfrom holdfast.errors import ConfigError"),
    ],
)
def test_an_allowed_import_is_not_found(module: str, statement: str) -> None:
    assert not import_faults(Source(module, statement))


def import_faults(source: Source) -> list[str]:
    # The root names the public API, which it imports lazily.
    if source.module == "" or source.is_in("testing", "conformance"):
        return []
    return [
        f"holdfast.{source.module} line {line}: {fault}"
        for line, target in imports(source)
        if (fault := find_fault(source, target))
    ]


def find_fault(source: Source, target: str) -> str | None:
    top = target.partition(".")[0]
    if source.is_in(FLEET) and top in ("holdfast", "holdfast_fleet"):
        name = target.partition(".")[2]
        public = top == "holdfast_fleet" or name in holdfast.__all__ or is_within(name, "errors")
        return None if public else f"{target} is not a public name"
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
        return "nothing imports holdfast.testing"
    if is_within(target, "conformance"):
        allowed = any(is_within(module, user) for user in CONFORMANCE_USERS)
        return None if allowed else "only `holdfast chaos` imports holdfast.conformance"
    row = row_of(module)
    if row is None:
        return f"holdfast.{module} is in no layer: give it a place in {__name__}"
    if part_of(target) == part_of(module) != "engines":
        return None
    if is_within(module, "engines") and is_within(target, "engines"):
        return engine_fault(module, target)
    if part_of(module) in PROGRAMS and part_of(target) in PROGRAMS:
        return None
    if part_of(target) not in row:
        return f"{part_of(module) or 'the root'} must not import holdfast.{target}"
    if is_within(target, "engines"):
        return public_module_fault(module, target)
    return None


def row_of(module: str) -> tuple[str, ...] | None:
    part = part_of(module)
    return next((allowed for parts, allowed in LAYERS if part in parts), None)


def part_of(module: str) -> str:
    """The entry of the table that a module belongs to; the root has only names of its own."""
    parts = [part for row, _ in LAYERS for part in row if part and is_within(module, part)]
    return max(parts, key=len, default="" if "." not in module else module)


def engine_fault(module: str, target: str) -> str | None:
    engine, other = concrete_engine(module), concrete_engine(target)
    if other and other != engine and not is_within(module, "engines.registry"):
        return f"only engines.registry knows the concrete engines, and this imports {other}"
    return None


def public_module_fault(module: str, target: str) -> str | None:
    for public, users in PUBLIC_ENGINE_MODULES.items():
        if is_within(target, public):
            known = any(not user or is_within(module, user) for user in users)
            return None if known else f"{public} is for {', '.join(users)}"
    return f"holdfast.{target} is a matter of the engines: use engines.base or engines.extras"


def concrete_engine(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "engines" and parts[1:] and parts[1] in ENGINES else None
