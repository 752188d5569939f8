"""Features of all commands: common flags, environment variables, help, errors and exit codes."""

import os
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any

import pytest
from cyclopts import App, Argument

from holdfast import __version__, errors
from holdfast.cli import help_pages, output, root
from holdfast.cli.help_pages import page
from holdfast.cli.output import Exit
from holdfast.cli.root import COMMON_FLAGS, variable
from holdfast.errors import BY_CODE, EngineUnavailable, Forbidden, InvalidJob, UnknownQueue
from tests.cli import seed
from tests.cli.program import Cli, command, environment, run_program

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_kept_pages_equal_the_help_of_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    printed = root.help_pages()
    commands, groups = root.shipped()
    assert len(printed) == 1 + len(groups) + len(commands)
    names = {"-".join(["holdfast", *words]): text for words, text in printed.items()}
    kept = {path.stem: path.read_text() for path in help_pages.FOLDER.glob("*.txt")}
    assert kept == names, "python -c 'from holdfast.cli import root; root.write_help_pages()'"


def test_the_usage_names_each_argument() -> None:
    usages = {path.stem: path.read_text().splitlines()[0] for path in help_pages.FOLDER.iterdir()}
    assert usages["holdfast-schedule-add"].endswith(" NAME [-- COMMAND...]")
    assert usages["holdfast-job-cancel"].endswith(" IDS...")
    assert usages["holdfast-dlq-export"].endswith(" [FILE]")
    assert not [usage for usage in usages.values() if "ARGS" in usage]


def test_no_help_loads_the_parser() -> None:
    commands, groups = root.shipped()
    lines = [[], *([group] for group in groups), *(words.split() for words in commands)]
    code = (
        f"import sys; from holdfast.cli import run; [run([*line, '--help']) for line in {lines}];"
        "run(['queue', 'create', '-h']); run([]); run(['--version']);"
        "heavy = {'cyclopts', 'rich', 'msgspec', 'asyncio', 'apsw', 'logging', 'json'};"
        "loaded = heavy & set(sys.modules); sys.exit(str(loaded) if loaded else 0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    pages_of_all = [page(line) or "" for line in lines]
    last = [page(["queue", "create"]), page([]), f"holdfast {__version__}\n"]
    assert ran.stdout == "".join([*pages_of_all, *filter(None, last)])


@pytest.mark.parametrize(
    ("line", "requested"),
    [
        (["-h"], []),
        (["--json", "--help"], []),
        (["enqueue", "--task", "x", "-h"], ["enqueue"]),
        (["job", "show", "some-id", "--help", "--url", "x"], ["job", "show"]),
        (["--json", "queue", "create", "--help"], ["queue", "create"]),
        (["queue", "--help"], ["queue"]),
        (["queue"], ["queue"]),
        (["queue", "--json"], None),
        (["enqueue", "--", "echo", "--help"], None),
        (["queue", "nonsense", "--help"], None),
        (["nonsense", "--help"], None),
        (["../../pages", "--help"], None),
        (["status"], None),
    ],
)
def test_which_page_is_requested(line: list[str], requested: list[str] | None) -> None:
    wanted = None if requested is None else page(requested)
    assert help_pages.requested_page(line) == wanted
    assert wanted is not None or requested is None


@pytest.mark.parametrize("words", root.shipped()[0])
def test_every_command_has_help_and_the_common_flags(cli: Cli, words: str) -> None:
    ran = cli(*words.split(), "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: holdfast {words} ")
    assert re.search(r"(?m)^  --url ", ran.out)
    assert re.search(r"(?m)^  --json ", ran.out)
    prefix = "_".join(["HOLDFAST", *words.split()]).upper().replace("-", "_")
    assert f"environment variable: {prefix}_" in " ".join(ran.out.split())
    assert max(map(len, ran.out.splitlines())) <= 80


def test_common_flags_may_stand_before_inside_or_after_the_command(cli: Cli) -> None:
    for line in (
        ["--url", "sqlite:///other.db", "--json", "queue", "create", "q"],
        ["--url", "sqlite:///other.db", "--json", "queue", "list"],
        ["--json", "--url=sqlite:///other.db", "queue", "list"],
        ["queue", "--json", "--url", "sqlite:///other.db", "list"],
        ["queue", "list", "--json", "--url", "sqlite:///other.db"],
    ):
        assert isinstance(cli(*line).json, dict if "create" in line else list)
    assert Path("other.db").exists()
    assert not Path("holdfast.db").exists()


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        (["--json", "run", "--", "a", "--json"], ["run", "--json", "--", "a", "--json"]),
        (["job", "--url", "x", "show", "1"], ["job", "show", "1", "--url", "x"]),
        (["--url=x", "status"], ["status", "--url=x"]),
        (["status", "--json", "more"], ["status", "--json", "more"]),
        (["--json"], ["--json"]),
        (["--url"], ["--url"]),
        (["--", "--json"], ["--", "--json"]),
    ],
)
def test_common_flags_are_moved_behind_the_command(line: list[str], moved: list[str]) -> None:
    assert root.move_common_flags(line) == moved


def test_the_url_comes_from_the_environment(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///env.db")
    line = ("queue", "create", "q")
    assert cli(*line).code == 0
    assert Path("env.db").exists()
    assert cli(*line, "--url", "sqlite:///flag.db").code == 0
    assert Path("flag.db").exists(), "a flag wins over its variable"
    monkeypatch.setenv("HOLDFAST_URL", "")
    assert cli(*line).code == 0
    assert Path("holdfast.db").exists(), "empty is the same as not there"


def _leaves() -> Iterator[tuple[tuple[str, ...], App]]:
    app = root.build()
    for words in root.shipped()[0]:
        path = tuple(words.split())
        yield path, _leaf(app, path)


def _leaf(app: App, path: tuple[str, ...]) -> App:
    return app[path[0]] if len(path) == 1 else app[path[0]][path[1]]


def _kinds(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return [kind for each in typing.get_args(hint) for kind in _kinds(each)]
    return [hint]


def _sample(argument: Argument) -> str:
    """A valid text for the argument that is not its default."""
    choices = argument.get_choices()
    if choices:
        return next(each for each in choices if each != str(argument.field_info.default))
    for kind in _kinds(argument.hint):
        if kind is type(None):
            continue
        if kind is bool:
            return "no" if argument.field_info.default is True else "yes"
        if kind in (int, float):
            return "7"
        return "a=1"
    raise AssertionError(argument.hint)


def _arguments(app: App) -> list[Argument]:
    return [each for each in app.assemble_argument_collection() if each.parse and not each.children]


@pytest.mark.parametrize("words", root.shipped()[0])
def test_every_flag_has_a_variable(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable changes the result, and in the same way as the flag."""
    for there in os.environ:
        if there.startswith("HOLDFAST_"):
            monkeypatch.delenv(there)
    path = tuple(words.split())
    app = root.build()
    arguments = _arguments(_leaf(app, path))
    flags = [each for each in arguments if each.name.startswith("-")]
    positional = [word for each in arguments if each not in flags for word in _words(each)]
    needed = [word for each in flags if each.required for word in _words(each)]
    without = _values(_parsed(app, [*path, *positional, *needed]))
    by_flags = _values(
        _parsed(app, [*path, *positional, *(w for each in flags for w in _words(each))])
    )
    optional = [each for each in flags if not each.required]
    assert len(set(by_flags.items()) - set(without.items())) == len(optional)
    for each in flags:
        monkeypatch.setenv(variable(path, each.name), _sample(each))
    assert _values(_parsed(app, [*path, *positional])) == by_flags


def _values(parsed: Any) -> dict[str, str]:
    """The value of each argument, those of grouped flags by their own names."""
    command_, given = parsed
    return {"": repr(command_), **_flat("", given)}


def _flat(prefix: str, given: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in given.items():
        if is_dataclass(value) and not isinstance(value, type):
            members = {each.name: getattr(value, each.name) for each in fields(value)}
            found |= _flat(f"{prefix}{name}.", members)
        else:
            found[f"{prefix}{name}"] = repr(value)
    return found


def _words(argument: Argument) -> list[str]:
    """The argument on a command line, with the value of its sample."""
    text = _sample(argument)
    if not argument.name.startswith("-"):
        return [text]
    if bool in _kinds(argument.hint):
        return [argument.name if text == "yes" else f"--no-{argument.name.lstrip('-')}"]
    return [argument.name, text]


def _parsed(app: App, line: list[str]) -> Any:
    command_, bound, _ = app.parse_args(line, exit_on_error=False, print_error=False)
    return command_, bound.arguments


def test_the_names_of_variables() -> None:
    assert variable(("enqueue",), "--max-attempts") == "HOLDFAST_ENQUEUE_MAX_ATTEMPTS"
    assert variable(("queue", "create"), "--lease") == "HOLDFAST_QUEUE_CREATE_LEASE"
    assert [variable(("status",), flag) for flag in COMMON_FLAGS] == [
        "HOLDFAST_URL",
        "HOLDFAST_JSON",
    ]
    names = [
        variable(path, argument.name)
        for path, app in _leaves()
        for argument in _arguments(app)
        if argument.name.startswith("-") and argument.name not in COMMON_FLAGS
    ]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, "two flags with one variable"


def test_several_values_in_one_variable(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ENQUEUE_LABELS", "a=1,b=2")
    id_ = cli("enqueue", "--task", "t", "--json").json["id"]
    assert cli("job", "show", id_, "--json").json["labels"] == {"a": "1", "b": "2"}


def test_both_program_names_work(tmp_path: Path) -> None:
    assert run_program(tmp_path, "--help", name="queuectl").out.startswith("Usage: queuectl ")
    ran = run_program(tmp_path, "queue", "create", "--help", name="/usr/bin/queuectl")
    assert ran.out.startswith("Usage: queuectl queue create ")
    ran = run_program(tmp_path, "--json", "job", "show", "1", "--help", name="queuectl")
    assert ran.out.startswith("Usage: queuectl job show ")
    assert run_program(tmp_path, "nonsense", name="queuectl").err.startswith("queuectl: unknown")
    assert run_program(tmp_path, "queue", "create", "q").code == 0
    ran = run_program(tmp_path, "job", "show", "x", HOLDFAST_COMMAND="./hf")
    assert ran.err.startswith('./hf: no job has the id "x"')
    assert run_program(tmp_path, "--version", name="queuectl").out == f"holdfast {__version__}\n"
    assert run_program(tmp_path, "--help", name="-c").out.startswith("Usage: holdfast ")


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["nonsense"], 2, 'unknown command "nonsense": see "holdfast --help"'),
        (["retry"], 2, 'unknown command "retry": did you mean "dlq retry" or "job retry"?'),
        (["worker", "shop:app"], 2, 'unknown command "shop:app": expected one of cordon, drain'),
        (["-A", "shop", "worker"], 2, 'unknown option "-A": put flags after the command'),
        (["worker", "-A", "shop"], 2, 'unknown option "-A": put flags after the command'),
        (["enqueu"], 2, "did you mean enqueue?"),
        (["queue", "create", "q", "--visibility-timeout", "9"], 2, "did you mean --lease?"),
        (["queue", "create", "q", "--max-retries=3"], 2, "did you mean --max-attempts, which"),
        (["enqueue", "--depends-on", "a", "--", "x"], 2, "did you mean --after?"),
        (["schedule", "add", "s", "--defer", "1m"], 2, "did you mean --delay?"),
        (["status", "--colour"], 2, 'unknown option "--colour": see "holdfast status --help"'),
        (["queue", "lst"], 2, 'unknown command "lst": did you mean list?'),
        (["queue", "--json"], 2, "the command is missing"),
        (["--json"], 2, "the command is missing"),
        (["--url"], 2, "the command is missing"),
        (["nonsense", "--help"], 2, "nonsense"),
        (["../pages", "--help"], 2, "pages"),
        (["status", "--colour", "red"], 2, "--colour"),
        (["--colour", "red", "status"], 2, 'unknown option "--colour"'),
        (["status", "extra"], 2, "too many arguments: 'extra'"),
        (["job", "show"], 2, 'ID is missing: see "holdfast job show --help"'),
        (["enqueue", "--queue"], 2, '--queue needs a value: see "holdfast enqueue --help"'),
        (["up", "--processes", "-1"], 2, "--processes -1 is out of range: expected 0 to 256"),
        (
            ["worker", "start", "--concurrency", "0"],
            2,
            "--concurrency 0 is out of range: expected 1 to 10000",
        ),
        (["job", "show", "nothing"], 3, 'no job has the id "nothing"'),
        (["queue", "create", "a/b"], 2, "queue name 'a/b'"),
        (["status", "--url", "mysql://u:hunter2@h/d"], 2, "no engine for the URL scheme 'mysql'"),
        (["status", "--url", "postgresql://u:hunter2@127.0.0.1:1/d"], 1, ""),
        (["backup", "x.db", "--url", "memory:"], 2, "memory engine does not support backup"),
    ],
)
def test_an_error_is_one_line_and_a_code(cli: Cli, line: list[str], code: int, says: str) -> None:
    seed.begin()
    for json in ([], ["--json"]):
        ran = cli(*json, *line)
        assert (ran.code, ran.out) == (code, ""), ran
        assert re.fullmatch(r"holdfast: .* \([a-z_]+\)\n", ran.err), ran.err
        assert says in ran.err
        assert "hunter2" not in ran.err


def test_the_documentation_lists_all_exit_and_error_codes() -> None:
    assert output.exit_for(errors.NotFound("x")) is Exit.NOT_FOUND
    assert output.exit_for(UnknownQueue("x")) is Exit.NOT_FOUND
    assert output.exit_for(InvalidJob("x")) is Exit.USAGE
    assert output.exit_for(EngineUnavailable("x")) is Exit.FAILED
    assert output.exit_for(output.Declined("x")) is Exit.FAILED
    listed = [int(code) for code in re.findall(r"(?m)^\| (\d+) \|", DOCS.read_text())]
    assert listed == [int(code) for code in Exit]
    codes = set(re.findall(r"(?m)^\| `([a-z_]+)` \|", DOCS.read_text()))
    assert codes >= {*BY_CODE, errors.NotFound.code, output.Declined.code}


@pytest.mark.parametrize("line", [["queue", "list"], ["status", "--json"], ["--help"]])
def test_a_reader_that_closes_the_pipe_early_causes_no_error(
    cli: Cli, line: list[str], tmp_path: Path
) -> None:
    assert cli("queue", "create", "q").code == 0
    reader, writer = os.pipe()
    os.close(reader)
    assert _written(line, writer, tmp_path) == (1, "")


def test_a_full_output_is_reported_in_one_line(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    code, errors = _written(["--help"], full, tmp_path)
    assert (code, errors.count("\n")) == (1, 1)
    assert "No space left" in errors


def _written(line: list[str], output: int, folder: Path) -> tuple[int, str]:
    ran = subprocess.run(
        command(*line),
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(),
        check=False,
    )
    os.close(output)
    return ran.returncode, ran.stderr


def test_a_missing_scope_names_the_command_that_grants_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(**_: object) -> None:
        raise Forbidden('this token may not do this: it needs the scope "operate"')

    monkeypatch.setattr("holdfast.cli.status.read_status", lambda _engine: refused())
    seed.begin()
    assert cli("status").err == (
        'holdfast: this token may not do this: it needs the scope "operate"; an administrator'
        ' creates such a token with "holdfast token create NAME --scope operate" (forbidden)\n'
    )


def test_a_token_without_scopes_names_them(cli: Cli) -> None:
    ran = cli("token", "create", "t")
    assert (ran.code, ran.out) == (2, "")
    assert "a token needs a scope: give --scope with any of produce, consume" in ran.err
