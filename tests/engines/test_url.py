"""Which engine a URL names, and that what is wrong with it is said without giving it away."""

import builtins
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from holdfast.engines.memory import MemoryEngine
from holdfast.engines.url import default_url, open_engine, redacted
from holdfast.errors import ConfigError
from holdfast.testing.clock import ManualClock


class Built:
    """Stands for a concrete engine and keeps what it was made with."""

    def __init__(self, place: str, **options: Any) -> None:
        self.place = place
        self.options = options


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> type[Built]:
    for name, member in (("sqlite", "SQLiteEngine"), ("postgres", "PostgresEngine")):
        module = ModuleType(f"holdfast.engines.{name}")
        setattr(module, member, Built)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return Built


def test_memory() -> None:
    assert isinstance(open_engine("memory:", clock=ManualClock()), MemoryEngine)


@pytest.mark.parametrize(
    ("text", "path", "options"),
    [
        ("sqlite:///work.db", "work.db", {}),
        ("sqlite:////var/lib/work.db", "/var/lib/work.db", {}),
        ("sqlite:///a%20b%3f.db", "a b?.db", {}),
        (
            "sqlite:///x.db?durability=relaxed&namespace=n",
            "x.db",
            {"durability": "relaxed", "namespace": "n"},
        ),
    ],
)
def test_sqlite(built: type[Built], text: str, path: str, options: dict[str, str]) -> None:
    clock = ManualClock()
    engine: Any = open_engine(text, clock=clock)
    assert isinstance(engine, Built)
    assert (engine.place, engine.options) == (path, {"clock": clock, **options})


def test_postgresql(built: type[Built]) -> None:
    engine: Any = open_engine(
        "postgresql://u:p%40@h:5/d?pooled=true&schema=s&connections=8&namespace=n&sslmode=require"
    )
    assert engine.place == "postgresql://u:p%40@h:5/d?sslmode=require"
    assert engine.options == {
        "clock": None,
        "pooled": True,
        "schema": "s",
        "connections": 8,
        "namespace": "n",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no scheme"),
        ("work.db", "no scheme"),
        ("/tmp/work.db", "no scheme"),
        ("mysql://root:hunter2@host/db", "'mysql'"),
        ("hunter2 :", "no engine for the URL scheme:"),
        ("memory:x", "no path"),
        ("memory:?a=hunter2", "'a'.*none"),
        ("sqlite:work.db", "sqlite:///work.db"),
        ("sqlite:///", "sqlite:///work.db"),
        ("sqlite:////", "sqlite:///work.db"),
        ("sqlite://host/x.db", "sqlite:///work.db"),
        ("sqlite:///x%00.db", "sqlite:///work.db"),
        ("sqlite:///x.db?sync=off", "'sync'.*durability, namespace"),
        ("sqlite:///x.db?durability=none", "full or relaxed"),
        ("sqlite:///x.db?namespace=a/b", "A-Z a-z 0-9"),
        ("sqlite:///x.db?namespace=a&namespace=b", "twice"),
        ("postgresql://u:hunter2@h:port/d", "cannot be read"),
        ("postgresql://u:hunter2@[h/d", "cannot be read"),
        ("postgresql://u:hunter2@h/d?pool=2", "'pool'.*connections, namespace, pooled, schema"),
        ("postgresql://u:hunter2@h/d?pooled=1", "true or false"),
        ("postgresql://u:hunter2@h/d?connections=0", "1 to 999"),
        ("postgresql://u:hunter2@h/d?schema=a%22b", "1 to 63"),
    ],
)
def test_what_is_wrong_is_named_and_the_password_is_not(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        open_engine(text)
    assert "hunter2" not in str(caught.value)


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_client(name: str, *rest: Any) -> Any:
        if name == "holdfast.engines.postgres":
            raise ModuleNotFoundError("No module named 'asyncpg'", name="asyncpg")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_client)
    with pytest.raises(ConfigError, match=r"asyncpg: pip install 'holdfast\[postgres\]'"):
        open_engine("postgresql://u:p@h/d")


def test_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    assert default_url() == "sqlite:///holdfast.db"
    monkeypatch.setenv("HOLDFAST_URL", "memory:")
    assert default_url() == "memory:"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("memory:", "memory:"),
        ("sqlite:///x.db?namespace=n", "sqlite:///x.db"),
        ("postgresql://u:hunter2@h:5/d?password=hunter2", "postgresql://h:5/d"),
        ("postgresql://u:hunter2@a,b@h/d", "postgresql://h/d"),
        ("postgresql://u:hunter2@[h/d", "postgresql:…"),
    ],
)
def test_what_may_be_shown(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_an_engine_that_is_not_asked_for_is_not_imported() -> None:
    code = (
        "import sys, holdfast.engines.url as url; url.open_engine('memory:');"
        "print(*[name for name in ('apsw', 'asyncpg') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
