"""Commands, flags, variables and paths in deploy/ and docs/deploying.md exist, and so do the
commands that other pages show for a shell: those in `console` blocks are run by `test_docs`."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest

from holdfast.cli import help_pages
from holdfast.engines.registry import open_engine, redacted
from holdfast.engines.sqs.names import QueueNames
from holdfast.server.application import OPERATIONS
from holdfast.server.settings import PORT
from tests.docs.test_docs import PAGES, ROOT

DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "deploying.md"
FILES = [*sorted(path for path in DEPLOY.rglob("*") if path.is_file()), PAGE]
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
COMPOSE = DEPLOY / "compose" / "compose.yaml"
# Variables that are not flags of a command; the library reads them.
OWN = {"HOLDFAST_URL", "HOLDFAST_TOKEN", "HOLDFAST_JSON", "HOLDFAST_BROKER_NAME"}


def words_of(path: Path) -> Iterator[list[str]]:
    """Every holdfast command line in a file, without the program."""
    return words_in(path.read_text())


def words_in(text: str) -> Iterator[list[str]]:
    for line in re.findall(r"(?m)^ExecStart=(.*)$", text):
        yield shlex.split(line)[1:]
    for line in re.findall(r"(?m)^CMD (\[.*\])$", text):
        yield json.loads(line)
    for line in re.findall(r"(?m)^ *(?:args|command): (\[.*\])$", text):
        if line == '["holdfast"]':
            continue
        yield json.loads(line)
    for line in re.findall(r"(?:^|[\s`])(?:\./hf|holdfast) ([a-z][^`\n]*)", text):
        words = shlex.split(line, comments=True)
        if help_pages.page(words[:1]) is not None:
            yield words


def help_of(words: list[str]) -> str:
    end = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    page = help_pages.page(words[: min(2, end)]) or help_pages.page(words[:1])
    assert page is not None, f"unknown command {words}"
    return page


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commands_and_their_flags_exist(path: Path) -> None:
    for words in words_of(path):
        require_flags(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_for_a_shell_exist(page: Path) -> None:
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        for words in words_in(block):
            require_flags(words)


def require_flags(words: list[str]) -> None:
    help_page = help_of(words)
    for word in words:
        if word == "--":
            break
        if word.startswith("--"):
            flag = word.partition("=")[0]
            assert re.search(rf"{flag}[\s,]", help_page), f"{flag} is not a flag of {words}"


def test_commands_were_found() -> None:
    found = {tuple(words[:2]) for path in FILES for words in words_of(path)}
    assert {("serve", "--host"), ("worker", "run"), ("token", "create")} <= found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_variable_belongs_to_a_flag(path: Path) -> None:
    for name in set(re.findall(r"\bHOLDFAST_[A-Z_]+", path.read_text())) - OWN:
        words = name.removeprefix("HOLDFAST_").lower().split("_")
        flag = f"--{'-'.join(words[1:])}"
        help_page = help_pages.page(words[:1]) or ""
        assert re.search(rf"{flag}[\s,]", help_page), f"no flag reads {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_extras_exist(path: Path) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"(?:holdfast|\.)\[([\w,]+)\]", path.read_text()):
        assert set(extras.split(",")) <= set(known)


def documents(path: Path) -> list[Any]:
    return list(importlib.import_module("yaml").safe_load_all(path.read_text()))


def values(node: Any, name: str) -> Iterator[Any]:
    """All values with this key, at any depth."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == name:
                yield value
            yield from values(value, name)
    elif isinstance(node, list):
        for value in node:
            yield from values(value, name)


def operation_at(path: str) -> Any:
    [found] = [each for each in OPERATIONS if (each.method, each.path) == ("GET", path)]
    return found


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_use_existing_paths_and_ports(path: Path) -> None:
    for document in documents(path):
        for probe in values(document, "httpGet"):
            assert operation_at(probe["path"]).needs is None, "a probe has no token"
        for port in values(document, "containerPort"):
            assert port == PORT


def triggers(type: str) -> list[Any]:
    """The triggers of this type in all manifests, which have one trigger each."""
    scaled = [
        each for path in MANIFESTS for each in documents(path) if each["kind"] == "ScaledObject"
    ]
    found = [each["spec"]["triggers"] for each in scaled]
    assert [len(each) for each in found] == [1, 1]
    return [each[0] for each in found if each[0]["type"] == type]


def test_the_scaler_of_sqs_counts_the_queue_of_the_workers() -> None:
    [trigger] = triggers("aws-sqs-queue")
    [deployment] = [
        each
        for each in documents(DEPLOY / "kubernetes" / "workers-sqs.yaml")
        if each["kind"] == "Deployment"
    ]
    [words] = values(deployment, "args")
    given = dict(itertools.pairwise(words))
    slots = int(given["--concurrency"]) * int(given["--processes"])
    assert trigger["metadata"]["queueLength"] == str(slots)
    region = trigger["metadata"]["awsRegion"]
    text = (DEPLOY / "kubernetes" / "workers-sqs.yaml").read_text()
    [url] = re.findall(r"url='(sqs://[^']+)'", text)
    assert redacted(url) == f"sqs://{region}/shop-"
    name = QueueNames("shop-").write(given["--queues"])
    assert trigger["metadata"]["queueURL"].endswith(f".{region}.amazonaws.com/123456789012/{name}")


def test_the_scaler_reads_an_existing_integer_field() -> None:
    [trigger] = triggers("metrics-api")
    parts = urlsplit(trigger["metadata"]["url"])
    operation = operation_at(parts.path)
    query = dict(parse_qsl(parts.query))
    read = msgspec.convert(query, operation.query, strict=False)
    assert read.queue == query["queue"]
    fields = {field.name: field for field in msgspec.structs.fields(operation.answer)}
    assert fields[trigger["metadata"]["valueLocation"]].type is int


def test_the_server_accepts_the_names_in_the_manifests() -> None:
    """A client in another namespace, such as an autoscaler, needs the full name."""
    everything = [each for path in MANIFESTS for each in documents(path)]
    arguments = [words for words in values(everything, "args") if words[0] == "serve"]
    names = {
        given
        for words in arguments
        for flag, given in itertools.pairwise(words)
        if flag == "--allow-host"
    }
    written = "\n".join(path.read_text() for path in MANIFESTS)
    used = set(re.findall(rf"http://([^:/\s]+):{PORT}", written))
    assert used <= names
    scaled = [url for url in values(everything, "url") if "/v1/scaling" in url]
    assert scaled
    assert all(".svc:" in url for url in scaled)


def test_the_stop_timeout_exceeds_the_grace_time() -> None:
    for path in DEPLOY.rglob("*.service"):
        text = path.read_text()
        [grace_s] = re.findall(r"--grace (\d+)s", text)
        [stop_s] = re.findall(r"TimeoutStopSec=(\d+)s", text)
        assert int(stop_s) > int(grace_s)
    for path in MANIFESTS:
        for document in documents(path):
            for spec in values(document, "template"):
                [given_s] = values(spec, "terminationGracePeriodSeconds")
                [arguments] = values(spec, "args")
                grace_s = arguments[arguments.index("--grace") + 1].removesuffix("s")
                assert given_s > int(grace_s)


def composed() -> dict[str, Any]:
    [document] = documents(COMPOSE)
    services: dict[str, Any] = document["services"]
    return services


def test_composed_services_are_pinned_and_listen_only_on_loopback() -> None:
    services = composed()
    assert set(services) == {"server", "worker", "rabbitmq", "postgres"}
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert "no-new-privileges:true" in service["security_opt"]
        if "build" in service:
            context = COMPOSE.parent / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).is_file()
        else:
            assert re.fullmatch(r"\w+:\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}", service["image"])
    assert services["server"]["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    assert operation_at("/readyz").needs is None
    assert "/readyz" in str(services["server"]["healthcheck"])


def test_composed_passwords_come_from_the_environment() -> None:
    services = composed()
    given = [value for service in services.values() for value in service["environment"].items()]
    for name, value in given:
        if "PASS" in name:
            assert re.fullmatch(r"\$\{[A-Z_]+:\?[^}]+\}", value)
    ignored = (ROOT / ".gitignore").read_text().split()
    assert ".env" in ignored


def test_the_composed_store_opens() -> None:
    services = composed()
    template = services["worker"]["environment"]["HOLDFAST_URL"]
    url = re.sub(r"\$\{[A-Z_]+:\?[^}]+\}", "0f1e", template)
    assert open_engine(url).traits.name == "postgres"
    assert redacted(url) == "brokered:amqp://rabbitmq/holdfast,postgresql://postgres/holdfast"
    assert services["rabbitmq"]["hostname"] == "rabbitmq"
    broker, database = services["rabbitmq"]["environment"], services["postgres"]["environment"]
    assert broker["RABBITMQ_DEFAULT_USER"] == broker["RABBITMQ_DEFAULT_VHOST"] == "holdfast"
    assert database["POSTGRES_USER"] == database["POSTGRES_DB"] == "holdfast"


def test_composed_workers_run_the_tasks_beside_the_file() -> None:
    worker = composed()["worker"]
    [mounted] = worker["volumes"]
    here, there, mode = mounted.split(":")
    assert worker["command"][2] == f"{there}:app"
    assert mode == "ro"
    namespace: dict[str, Any] = {"__name__": "tasks"}
    exec(compile((COMPOSE.parent / here).read_text(), here, "exec"), namespace)
    assert [task.name for task in namespace["app"].tasks.values()] == ["tasks:greet"]


def test_composed_services_may_take_longer_to_stop_than_the_grace_time() -> None:
    for name in ("server", "worker"):
        service = composed()[name]
        grace_s = service["command"][service["command"].index("--grace") + 1].removesuffix("s")
        assert int(service["stop_grace_period"].removesuffix("s")) > int(grace_s)


def test_the_image_has_the_extras_of_the_composed_store() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    [extras] = re.findall(r'"\.\[([\w,]+)\]"', text)
    assert {"server", "postgres", "rabbitmq"} <= set(extras.split(","))


def test_the_image_is_built_from_pinned_parts() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    bases = re.findall(r"(?m)^FROM (\S+)", text)
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", bases[0])
    installs = re.findall(r"pip install (.*)", text.replace("\\\n       ", ""))
    assert len(installs) == 2
    assert "--require-hashes -r lock-uv.txt" in installs[0]
    # uv checks the hashes of constraints; lock.txt has those of every extra and of the build.
    assert "--constraints lock.txt" in installs[1]
    assert "--build-constraints lock.txt --require-build-hashes" in installs[1]
    [copied] = re.findall(r"(?m)^COPY (pyproject.*) \./$", text)
    assert all((ROOT / name).is_file() for name in copied.split())


def test_every_token_in_the_guides_goes_to_a_private_file() -> None:
    for path in [*FILES, ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for words in words_of(path):
            if words[:2] == ["token", "create"] and len(words) > 2:
                assert "--out" in words, f"{path.name}: {words}"
