"""Code and commands in the docs run, links exist, and the engine table matches the traits."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import holdfast
from holdfast import errors, testing
from holdfast.cli import help_pages
from tests import template
from tests.docs import python, tables
from tests.docs.curl import curl, token_in
from tests.sources import PACKAGE
from tests.wait import wait_until

ROOT = tables.ROOT
PAGES = [
    tables.README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
PLAYED = {"tutorial.md"}
"""Pages with a test that plays them as a whole."""
PROGRAMS = ("./hf", "holdfast")
"""How pages call the product: in a clone, and installed."""
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
_NAMED_COMMAND = re.compile(r"`(?:(?:holdfast|queuectl|\./hf) )?([a-z]+) ([a-z-]+(?:\|[a-z-]+)*)")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
_LONG_RUNNING = {"up", "serve", "demo", "chaos", "top", "test", "check", "docs", "lock"}
_LONG_RUNNING |= {"bench", "torture"}


README_COLUMNS = 120
README_CODE_COLUMNS = 84
"""Code is not wrapped: the documentation site and package indexes cut a longer line off."""
SERVER = "http://127.0.0.1:7433"
"""The address that the docs show. Tests run a server at another one."""
PAGES_WITH_CLIENTS = [
    page
    for page in PAGES
    if any(each[0] == "python" and SERVER in each[1] for each in _BLOCK.findall(page.read_text()))
]


def holdfast_program() -> str:
    return str(Path(sys.executable).with_name("holdfast"))


def store_of(page: Path, request: pytest.FixtureRequest) -> str:
    """The URL of the store for the commands of a page."""
    ledger = "sqlite:///holdfast.db"
    if page.stem != "rabbitmq":
        return ledger
    return f"brokered:{request.getfixturevalue('amqp_url')}?prefix=docs-{uuid4().hex[:8]},{ledger}"


def blocks(language: str, wanted: Callable[[str], bool] = lambda _: True) -> list[object]:
    found: list[object] = []
    for page in PAGES:
        for number, match in enumerate(_BLOCK.finditer(page.read_text())):
            if match[1] == language and wanted(match[2]):
                name = f"{page.relative_to(ROOT)}-{number}"
                found.append(pytest.param(match[2], id=name))
    return found


@pytest.mark.parametrize("source", blocks("python", lambda source: SERVER not in source))
def test_python_code_runs(source: str, tmp_path: Path) -> None:
    run_code(source, tmp_path)


@pytest.mark.parametrize("page", PAGES_WITH_CLIENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_code_runs_at_a_server(page: Path, tmp_path: Path) -> None:
    """All programs of a page at one server, whose start takes longer than they do."""
    environment = {**os.environ, "HOLDFAST_URL": "sqlite:///holdfast.db"}
    sources = [match[2] for match in _BLOCK.finditer(page.read_text()) if match[1] == "python"]
    shown = [source for source in sources if SERVER in source]
    assert shown
    with running_server(holdfast_program(), tmp_path, environment) as address:
        for source in shown:
            run_code(source.replace(SERVER, address), tmp_path)


def run_code(source: str, folder: Path) -> None:
    script = folder / "shown.py"
    script.write_text(source)
    run = template.run([str(script)], folder, os.environ)
    assert run.returncode == 0, f"{source}\n{run.stdout}{run.stderr}"


@pytest.mark.parametrize("source", blocks("python"))
def test_a_worker_can_import_an_example(source: str) -> None:
    """Workers import the file that has the tasks: what it enqueues then is enqueued again by each
    of them. The modes for tests use a store of their own."""
    tree = ast.parse(source)
    if "@app.task" not in source:
        return
    for node in tree.body:
        if not re.match(
            r"(if __name__ == |with (inline|manual|fake)\(|(async )?def |@|class )",
            ast.get_source_segment(source, node) or "",
        ):
            called = [each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)]
            assert not {"enqueue", "aenqueue", "enqueue_many", "delay"}.intersection(called)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page != python.PAGE and "```py\n" in page.read_text()],
    ids=lambda page: page.name,
)
def test_code_of_other_products_is_python(page: Path) -> None:
    """Celery and the others are not installed here. Other `py` blocks are run by their own tests;
    those of the reference are signatures."""
    for match in _BLOCK.finditer(page.read_text()):
        if match[1] == "py":
            ast.parse(match[2], str(page))


def test_every_error_in_the_docs_can_be_imported_from_holdfast() -> None:
    known = {each.__name__ for each in errors.BY_CODE.values()}
    text = "\n".join(page.read_text() for page in PAGES)
    named = {name for name in re.findall(r"`(?:holdfast\.)?([A-Z]\w+)", text) if name in known}
    assert {"InvalidJob", "UnknownQueue", "ResultTimeout", "EngineUnavailable"} <= named
    for name in named:
        assert getattr(holdfast, name) is getattr(errors, name)
    assert {error.__name__ for error in errors.BY_CODE.values()} <= set(holdfast.__all__)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name not in PLAYED],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_commands_run(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Run the commands in order in one folder, with workers or a server if the page starts them."""
    shown = [step for match in _BLOCK.finditer(page.read_text()) for step in steps(match)]
    environment = {**os.environ, "HOLDFAST_URL": store_of(page, request), "COLUMNS": "200"}
    environment.pop("HOLDFAST_COMMAND", None)
    program = holdfast_program()
    with contextlib.ExitStack() as stack:
        if any(words[0] in PROGRAMS and words[1:2] == ["up"] for words, _ in shown):
            stack.enter_context(running_workers(program, tmp_path, environment))
        if any(words[0] == "curl" for words, _ in shown):
            address = stack.enter_context(running_server(program, tmp_path, environment))
        token = None
        for words, expected in shown:
            if words[0] == "curl":
                printed = curl(words[1:], address, token)
                assert looks_like(printed, expected), f"{words} printed:\n{printed}"
                token = token_in(printed) or token
                continue
            assert words[0] in PROGRAMS, f"docs may show only {PROGRAMS} and curl: {words}"
            if words[1] in _LONG_RUNNING:
                continue
            run = template.run([template.HOLDFAST, *words[1:]], tmp_path, environment)
            assert run.returncode == 0, f"{words}\n{run.stdout}{run.stderr}"
            assert looks_like(run.stdout, expected), f"{words} printed:\n{run.stdout}"


def steps(block: re.Match[str]) -> list[tuple[list[str], list[str]]]:
    """Commands of a block with their expected output; `$ ` marks commands in a transcript."""
    if block[1] != "console":
        return []
    found: list[tuple[list[str], list[str]]] = []
    transcript = block[2].startswith("$ ")
    for line in block[2].splitlines():
        if not transcript or line.startswith("$ "):
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words:
                found.append((words, []))
        else:
            found[-1][1].append(line)
    return found


def looks_like(printed: str, expected: list[str]) -> bool:
    """Compare output with the docs: `…` matches any text on a line, spaces are ignored."""
    shapes = (map(re.escape, line.split()) for line in expected)
    pattern = r"\s*".join(r"\s*".join(shape).replace("…", r"[^\n]*") for shape in shapes)
    return not expected or re.search(pattern, printed) is not None


@contextlib.contextmanager
def running_workers(program: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """One worker, without the server and the other workers that `up` starts for nobody here."""
    with subprocess.Popen(
        [program, "up", "--count", "1", "--no-serve"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as up:
        assert up.stdout is not None
        try:
            while "running:" not in (line := up.stdout.readline()):
                assert line, "the worker did not start"
            yield
        finally:
            up.terminate()
            up.wait()


@contextlib.contextmanager
def running_server(program: str, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    with subprocess.Popen(
        [program, "serve", "--port", "0"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as serving:
        assert serving.stdout is not None
        try:
            address = re.search(r"http://\S+", serving.stdout.readline())
            assert address, "the server did not start"
            yield address[0]
        finally:
            serving.terminate()
            serving.wait()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_named_in_the_text_exist(page: Path) -> None:
    """Those in a group, in backquotes, such as `job explain ID` or `redrive list|show`."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    unknown = [
        f"{group} {command}"
        for group, commands in _NAMED_COMMAND.findall(text)
        if "COMMAND\n" in (help_pages.page([group]) or "")
        for command in commands.split("|")
        if help_pages.page([group, command]) is None
    ]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_exist(page: Path) -> None:
    missing = [
        target
        for target in _LINK.findall(page.read_text())
        if not (page.parent / target.strip()).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_generated_tables_are_current(page: Path) -> None:
    current = page.read_text() == tables.with_table(page)
    assert current, "run: .venv/bin/python -m tests.docs.tables"


def test_a_worker_runs_the_program_of_the_readme(tmp_path: Path) -> None:
    """As its two commands say: enqueue, then start a worker."""
    text = tables.README.read_text()
    program = _BLOCK.findall(text)[1]
    assert program[0] == "python"
    assert "python shop.py " in text
    assert "holdfast worker run shop.py:app " in text
    (tmp_path / "shop.py").write_text(program[1])
    environment = {**os.environ, "HOLDFAST_URL": "sqlite:///holdfast.db"}
    ran = template.run(["shop.py"], tmp_path, environment)
    assert ran.returncode == 0, ran.stderr
    command = [holdfast_program(), "worker", "run", "shop.py:app"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as worker:
        try:
            with holdfast.BlockingHoldfast(f"sqlite:///{tmp_path}/holdfast.db") as app:
                wait_until(lambda: [job.state for job in app.jobs()] == [holdfast.State.DONE] * 2)
                assert {job.task for job in app.jobs()} == {"shop:charge", "shop:send_mail"}
                wait_until(lambda: [each.name for each in app.schedules.all()])
        finally:
            worker.terminate()


def test_no_line_of_the_readme_scrolls() -> None:
    """Lines as package indexes and code hosts show them: a row of a table is wrapped by neither."""
    lines = tables.README.read_text().splitlines()
    assert [line for line in lines if len(line) > README_COLUMNS] == []
    code = "".join(match[2] for match in _BLOCK.finditer("\n".join(lines)))
    assert [line for line in code.splitlines() if len(line) > README_CODE_COLUMNS] == []


def test_the_python_reference_is_current() -> None:
    assert python.PAGE.read_text() == python.page(), "run: .venv/bin/python -m tests.docs.python"


def test_the_python_reference_has_every_public_name() -> None:
    public = {*holdfast.__all__, *testing.__all__} - {"__version__"}
    assert public - python.documented() == set(), "add them to SECTIONS in tests/docs/python.py"
    modules = {path.stem for path in (PACKAGE / "integrations").glob("[a-z]*.py")}
    assert modules == set(python.INTEGRATIONS)
