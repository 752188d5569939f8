"""URLs and their engines; errors never show a password."""

import builtins
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.app.application import Holdfast
from holdfast.core.model import Queue
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.registry import (
    default_url,
    open_broker,
    open_engine,
    open_link,
    parts_of,
    redacted,
    schemes,
    with_namespace,
)
from holdfast.errors import ConfigError, Unsupported
from holdfast.testing.clock import ManualClock


class Built:
    """Stands for a concrete engine and keeps what it was made with."""

    traits = MemoryEngine().traits

    def __init__(self, place: str, **options: Any) -> None:
        self.place = place
        self.options = options


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> type[Built]:
    known = (
        ("sqlite", "SQLiteEngine"),
        ("postgres", "PostgresEngine"),
        ("remote", "RemoteEngine"),
    )
    for name, member in known:
        module = ModuleType(f"holdfast.engines.{name}")
        setattr(module, member, Built)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return Built


async def test_missing_traits_are_enforced(tmp_path: Path) -> None:
    """Partitions cannot have one limit, and the composition itself does not check that."""
    urls = ",".join(f"sqlite:///{tmp_path}/{name}.db" for name in "ab")
    engine = open_engine(f"partitioned:{urls}")
    await engine.open()
    with pytest.raises(Unsupported, match="max_depth"):
        await engine.declare(Queue(name="mail", max_depth=5))
    await engine.close()


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
    ("text", "place", "options"),
    [
        ("http://127.0.0.1:7433", "http://127.0.0.1:7433", {"token": None}),
        ("https://hf_a_b%21@h/", "https://h", {"token": "hf_a_b!"}),
        (
            "https://h:5/jobs/?namespace=n&ca=/etc/ca.pem",
            "https://h:5/jobs",
            {"token": None, "namespace": "n", "ca": "/etc/ca.pem"},
        ),
        ("http://hf_a_b@[::1]:5", "http://[::1]:5", {"token": "hf_a_b"}),
    ],
)
def test_a_server(
    built: type[Built],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    place: str,
    options: dict[str, str],
) -> None:
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    engine: Any = open_engine(text)
    assert isinstance(engine, Built)
    assert (engine.place, engine.options) == (place, options)


def test_the_token_may_be_in_the_environment(
    built: type[Built], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "hf_of_all")
    assert open_engine("https://h").options == {"token": "hf_of_all"}  # type: ignore[attr-defined]
    of_url: Any = open_engine("https://hf_mine@h")
    assert of_url.options == {"token": "hf_mine"}
    monkeypatch.setenv("HOLDFAST_TOKEN", "hf_hunter2\r\nx: y")
    with pytest.raises(ConfigError, match="copy it exactly as it was shown") as caught:
        open_engine("https://h")
    assert "hunter2" not in str(caught.value)


def test_brokered(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("holdfast.engines.rabbitmq")
    module.RabbitBroker = module.RabbitLink = Built  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    url = "amqps://u:p%40@h:5/v?prefix=p&dead-ttl=90m&ca=c.pem"
    engine: Any = open_engine(f"brokered:{url},sqlite:///w.db?namespace=n")
    assert (engine.broker().place, engine.broker().options) == (
        "amqps://u:p%40@h:5/v",
        {"prefix": "p", "dead_ttl_ms": 90 * 60_000, "ca": "c.pem"},
    )
    assert engine._namespace == "n"
    plain: Any = open_engine("brokered:amqp://h,sqlite:///w.db")
    assert plain.broker().options == {"prefix": "holdfast", "dead_ttl_ms": 24 * 3_600_000}
    assert plain._namespace == "default"
    link: Any = open_link(url)
    assert (link.place, link.options) == ("amqps://u:p%40@h:5/v", {"ca": "c.pem"})


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
        ("postgresql://u:hunter2@h:port/d", "cannot be parsed"),
        ("postgresql://u:hunter2@[h/d", "cannot be parsed"),
        ("postgresql://u:hunter2@h/d?pool=2", "'pool'.*connections, namespace, pooled, schema"),
        ("postgresql://u:hunter2@h/d?pooled=1", "true or false"),
        ("postgresql://u:hunter2@h/d?connections=0", "1 to 999"),
        ("postgresql://u:hunter2@h/d?schema=a%22b", "1 to 63"),
        ("http:", "https://host"),
        ("http:///x", "https://host"),
        ("https://@h", "https://host"),
        ("https://u:hunter2@h", "https://host"),
        ("https://hunter2@h:port", "https://host"),
        ("https://hunter2@h#x", "https://host"),
        ("https://hunter2%0d%0a@h", "copy it"),
        ("https://hunter2@h?pool=2", "'pool'.*ca, cert, namespace"),
        ("https://hunter2@h?ca=", "certificates"),
        ("brokered:", "a broker and its ledger"),
        ("brokered:amqp://u:hunter2@h", "a broker and its ledger"),
        ("brokered:amqp://h,sqlite:///a,sqlite:///b", "a broker and its ledger"),
        ("brokered:amqp://u:hunter2@h,memory:", "memory engine cannot be the ledger"),
        ("brokered:amqp://h,https://hf_hunter2@h", "cannot be the ledger"),
        ("brokered:mqtt://u:hunter2@h,sqlite:///w.db", "no broker for the URL scheme .mqtt"),
        ("brokered:amqp:hunter2,sqlite:///w.db", "amqp://user:password@host:port/vhost"),
        ("brokered:amqp://u:hunter2@h:port,sqlite:///w.db", "percent-encoded"),
        ("brokered:amqp://u:hun?ter2hunter2@h,sqlite:///w.db", "percent-encode"),
        ("brokered:amqp://u:hunter2@h#x,sqlite:///w.db", "percent-encoded"),
        ("brokered:amqp://u:hunter2@h?pool=2,sqlite:///w.db", "'pool'.*ca, cert, dead-ttl, prefix"),
        ("brokered:amqp://u:hunter2@h?prefix=a.b,sqlite:///w.db", "1 to 30"),
        ("brokered:amqp://u:hunter2@h?dead-ttl=24,sqlite:///w.db", "24h"),
        ("brokered:amqp://u:hunter2@h?dead-ttl=50d,sqlite:///w.db", "49d"),
        ("brokered:amqp://u:hunter2@h?ca=x,sqlite:///w.db", "amqps"),
        ("partitioned:brokered:amqp://h,sqlite:///w.db", "a partition is a single store"),
    ],
)
def test_errors_name_the_mistake_but_not_the_password(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        open_engine(text)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "package", "extra", "text"),
    [
        ("holdfast.engines.postgres", "asyncpg", "postgres", "postgresql://u:p@h/d"),
        ("holdfast.engines.remote", "httptools", "remote", "https://h"),
        ("holdfast.engines.sqs.engine", "botocore", "aws", "sqs://eu-west-1/"),
        (
            *("holdfast.engines.rabbitmq", "aiormq", "rabbitmq"),
            "brokered:amqp://h,sqlite:///w.db",
        ),
    ],
)
def test_a_missing_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str, extra: str, text: str
) -> None:
    real = builtins.__import__

    def without_client(name: str, *rest: Any) -> Any:
        if name == module:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_client)
    with pytest.raises(ConfigError, match=rf"{package}: pip install 'holdfast\[{extra}\]'"):
        open_engine(text)


def test_sqs() -> None:
    url = (
        "sqs://eu-west-1/shop-?endpoint=http://127.0.0.1:7433&create=true&namespace=acme"
        "&control=memory:"
    )
    traits = open_engine(url).traits
    assert (traits.name, traits.records) == ("sqs", True)
    assert traits.queue_name_max == 80 - len("shop-acme____") - len("-dlq")
    assert not open_engine("sqs://us-gov-east-1").traits.records


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sqs:eu-west-1", "sqs://REGION/PREFIX"),
        ("sqs://", "sqs://REGION/PREFIX"),
        ("sqs://Europe/shop", "sqs://REGION/PREFIX"),
        ("sqs://AKIA:hunter2@eu-west-1/shop", "never part of it"),
        ("sqs://eu-west-1/a.b", "the prefix"),
        ("sqs://eu-west-1/?colour=red", "control, create, endpoint, namespace"),
        ("sqs://eu-west-1/?create=yes", "true or false"),
        ("sqs://eu-west-1/?endpoint=http://u:hunter2@h", "without credentials"),
        ("sqs://eu-west-1/?endpoint=127.0.0.1:7433", "http://127.0.0.1:7433"),
        ("sqs://eu-west-1/?control=sqs://eu-west-1/", "which SQS cannot"),
        ("sqs://eu-west-1/?namespace=a_b", "the namespace"),
    ],
)
def test_wrong_sqs_urls(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as raised:
        open_engine(text)
    assert "hunter2" not in str(raised.value)


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
        ("https://hf_hunter2@h:5/jobs?namespace=n", "https://h:5/jobs"),
        ("partitioned:sqlite:///a.db,https://hf_hunter2@h", "partitioned:sqlite:///a.db,https://h"),
        (
            "brokered:amqp://u:hunter2@h/v?ca=x,postgresql://u:hunter2@h/d?password=hunter2",
            "brokered:amqp://h/v,postgresql://h/d",
        ),
        ("sqs://eu-west-1/shop-?control=postgresql://u:hunter2@h/d", "sqs://eu-west-1/shop-"),
    ],
)
def test_a_redacted_url_shows_no_secret(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("memory:", "memory:"),
        ("sqlite:///x.db", "sqlite:///x.db?namespace=n"),
        (
            "sqlite:///x%3f#.db?namespace=a&durability=full",
            "sqlite:///x%3f#.db?durability=full&namespace=n",
        ),
        ("postgresql://u:p%40@h/d", "postgresql://u:p%40@h/d?namespace=n"),
        (
            "postgresql://h/d?name%73pace=a&password=%26b&schema=s",
            "postgresql://h/d?password=%26b&schema=s&namespace=n",
        ),
        ("https://hf_a@h?namespace=a", "https://hf_a@h?namespace=n"),
        (
            "partitioned:sqlite:///a,b.db,postgresql://h/d?namespace=a",
            "partitioned:sqlite:///a,b.db?namespace=n,postgresql://h/d?namespace=n",
        ),
        (
            "brokered:amqp://h/v?prefix=p,sqlite:///w.db?namespace=a",
            "brokered:amqp://h/v?prefix=p,sqlite:///w.db?namespace=n",
        ),
        ("sqs://eu-west-1/shop-", "sqs://eu-west-1/shop-?namespace=n"),
        (
            "sqs://eu-west-1/?namespace=a&control=postgresql://h/d%3Fschema=s%26namespace=a",
            "sqs://eu-west-1/?control=postgresql://h/d%3Fschema%3Ds%26namespace%3Dn&namespace=n",
        ),
    ],
)
def test_a_url_with_another_namespace(text: str, named: str) -> None:
    assert with_namespace(text, "n") == named
    assert with_namespace(named, "n") == named


@pytest.mark.parametrize("name", ["", "a/b", "n&durability=relaxed", "n" * 81, "ä"])
def test_a_namespace_cannot_smuggle_in_options(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 80"):
        with_namespace("sqlite:///x.db", name)


def test_unused_engines_are_not_imported() -> None:
    code = (
        "import sys, holdfast.engines.registry as url; url.open_engine('memory:');"
        "print(*[name for name in ('apsw', 'asyncpg') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


class TestOtherPackages:
    """Engines of other packages join by an entry point."""

    @staticmethod
    def install(
        folder: Path,
        package: str,
        scheme: str,
        target: str,
        code: str = "",
        group: str = "holdfast.engines",
    ) -> None:
        """Put a distribution on a folder of `sys.path`, as an installer would."""
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{scheme} = {target}\n")
        if code:
            (folder / f"{target.partition(':')[0]}.py").write_text(code)

    CODE = (
        "from holdfast.engines.memory import MemoryEngine\n"
        "class AcmeEngine(MemoryEngine):\n"
        "    def __init__(self, url, clock):\n"
        "        super().__init__(clock=clock)\n"
        "        self.url = url\n"
    )

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.syspath_prepend(tmp_path)
        return tmp_path

    async def test_an_engine_of_another_package(self, folder: Path) -> None:
        self.install(folder, "acme-holdfast", "acme", "acme_one:AcmeEngine", self.CODE)
        engine: Any = open_engine("acme://u:hunter2@host/jobs?colour=red", clock=ManualClock(5))
        assert engine.url == "acme://u:hunter2@host/jobs?colour=red"
        assert (await engine.examine()).now == 5
        assert "acme" in schemes()
        assert redacted("acme://u:hunter2@host/jobs?colour=red") == "acme://host/jobs"
        async with Holdfast("acme://host/jobs") as app:
            await app.enqueue("work")
            assert app.place == "acme://host/jobs"

    def test_as_a_partition(self, folder: Path) -> None:
        self.install(folder, "acme-holdfast", "acme", "acme_two:AcmeEngine", self.CODE)
        assert parts_of("partitioned:acme://a,b,acme://c") == ["acme://a,b", "acme://c"]
        open_engine("partitioned:acme://a,memory:")

    def test_one_that_cannot_be_loaded(self, folder: Path) -> None:
        self.install(folder, "acme-holdfast", "acme", "acme_gone:AcmeEngine")
        with pytest.raises(ConfigError, match=r"acme cannot be loaded .*reinstall acme-holdfast"):
            open_engine("acme://host")

    def test_two_packages_with_one_scheme(self, folder: Path) -> None:
        self.install(folder, "acme-holdfast", "acme", "acme_a:Engine")
        self.install(folder, "other-holdfast", "acme", "acme_b:Engine")
        with pytest.raises(ConfigError, match="claimed by acme-holdfast and other-holdfast"):
            open_engine("acme://host")

    def test_no_package_replaces_a_built_in_engine(self, folder: Path) -> None:
        self.install(folder, "acme-holdfast", "memory", "acme_three:AcmeEngine", self.CODE)
        assert type(open_engine("memory:")) is MemoryEngine

    def test_a_broker_of_another_package(self, folder: Path) -> None:
        code = "def open_broker(url): return [url]\ndef open_link(url): return (url,)\n"
        self.install(folder, "acme-holdfast", "acme", "acme_four", code, "holdfast.brokers")
        opened: list[Any] = [open_broker("acme://h"), open_link("acme://h")]
        assert opened == [["acme://h"], ("acme://h",)]
        engine: Any = open_engine("brokered:acme://h,sqlite:///w.db")
        assert engine.broker() == ["acme://h"]

    def test_a_broker_that_cannot_be_loaded(self, folder: Path) -> None:
        self.install(folder, "acme-holdfast", "acme", "acme_gone", group="holdfast.brokers")
        with pytest.raises(ConfigError, match=r"broker .* acme cannot be loaded"):
            open_broker("acme://host")
