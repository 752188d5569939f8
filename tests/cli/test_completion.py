"""Completion scripts for shells, and the values from the store that they offer."""

import shutil
import subprocess
import sys
import tempfile
from functools import cache, partial
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.cli import root
from holdfast.cli.terminal import completion
from holdfast.cli.terminal.completion import Kind, WantedValues, values_of, wanted_values
from holdfast.ops.ticks import Schedule
from tests.cli import seed
from tests.cli.program import CODE, Cli, environment, run_program


@pytest.mark.parametrize(
    ("shell", "flag"), [("bash", '"--url" '), ("zsh", "--url["), ("fish", "' -l url ")]
)
def test_a_script_names_every_command_and_the_common_flags(cli: Cli, shell: str, flag: str) -> None:
    ran = cli("completion", shell)
    assert ran.code == 0
    commands, groups = root.shipped()
    for word in (*(words.split()[-1] for words in commands), "max-attempts"):
        assert word in ran.out
    assert f"holdfast completion {shell} > " in ran.err
    # The common flags are offered before every name.
    assert ran.out.count(flag) == len(commands) + len(groups) + 1
    if shell == "zsh":
        # It completes when it is loaded, and when it is read.
        assert ran.out.startswith("#compdef holdfast\n")
        assert '_cyclopts_holdfast "$@"' in ran.out
        assert "compdef _cyclopts_holdfast holdfast" in ran.out
        assert "'1:Id of the job.:_holdfast_values'" in ran.out
        assert "]:queue:_holdfast_values'" in ran.out
    if shell == "fish":
        assert " -l queue -x -a '(holdfast --complete " in ran.out
    if path := shutil.which(shell):
        checked = subprocess.run([path, "-n"], input=ran.out, text=True, check=False)
        assert checked.returncode == 0


def test_a_script_as_json(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    # A script of one command is written as that of all is, and sooner.
    monkeypatch.setattr(root, "build", partial(root.build, only="enqueue", added=()))
    view = cli("completion", "fish", "--json").json
    assert (view["shell"], view["program"]) == ("fish", "holdfast")
    assert "enqueue" in view["script"]


def test_an_unknown_shell_is_refused(cli: Cli) -> None:
    assert cli("completion", "csh").code == 2


ASK = """
source ./script
COMP_WORDS=({words} "") COMP_CWORD={at}
COMP_LINE="{words} " COMP_POINT=${{#COMP_LINE}}
$(complete -p {program} | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@cache
def bash_script(program: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return run_program(Path(folder), "completion", "bash", name=program).out


@pytest.mark.parametrize("program", ["holdfast", "queuectl"])
def test_bash_completes(program: str, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(bash_script(program))
    asked = ASK.format(words=f"{program} queue", at=2, program=program)
    ran = subprocess.run(
        ["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert {"create", "list"} <= set(ran.stdout.split()), ran


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("holdfast queue show ", WantedValues("queues", "")),
        ("holdfast queue show ma", WantedValues("queues", "ma")),
        ("holdfast queue limits q", WantedValues("queues", "q")),
        ("holdfast queue limit mail x", None),
        ("holdfast queue create ma", None),
        ("holdfast queue show mail ma", None),
        ("holdfast job cancel a b c", WantedValues("jobs", "c")),
        ("holdfast job logs --json a", WantedValues("jobs", "a")),
        ("holdfast dlq show ", WantedValues("dead letters", "")),
        ("holdfast dlq retry a ", WantedValues("dead letters", "")),
        ("holdfast dlq export ", None),
        ("holdfast worker drain w", WantedValues("workers", "w")),
        ("holdfast worker run ta", None),
        ("holdfast redrive show ", WantedValues("redrives", "")),
        ("holdfast breaker open ", WantedValues("breakers", "")),
        ("holdfast schedule edit --cron '0 2 * * *' n", WantedValues("schedules", "n")),
        ("holdfast schedule add n", None),
        ("holdfast gate pause ", WantedValues("gates", "")),
        ("holdfast config set al", WantedValues("settings", "al")),
        ("holdfast config set alert-age 5", None),
        ("holdfast list --queue ", WantedValues("queues", "")),
        ("holdfast list --queue=ma", WantedValues("queues", "ma", "--queue=")),
        ("holdfast list --task mail:s", WantedValues("tasks", "mail:s")),
        ("holdfast enqueue --to ", WantedValues("workers", "")),
        ("holdfast enqueue --after a", WantedValues("jobs", "a")),
        ("holdfast move-store --to ", None),
        ("holdfast --url memory: job show a", WantedValues("jobs", "a", url="memory:")),
        ("holdfast job show a --url=memory: --json", None),
        ("holdfast job show --url=memory: a", WantedValues("jobs", "a", url="memory:")),
        ("holdfast enqueue -- ls ", None),
        ("holdfast nothing ", None),
        ("holdfast job 'sho", None),
        ("holdfast", None),
        ("", None),
    ],
)
def test_what_the_last_word_of_a_line_may_be(line: str, wanted: WantedValues | None) -> None:
    assert wanted_values(line) == wanted


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("queues", {"default", "mail"}),
        ("tasks", {"mail:send", "t"}),
        ("jobs", {"a", "b"}),
        ("dead letters", {"b"}),
        ("workers", {"w"}),
        ("schedules", {"nightly"}),
        ("redrives", set()),
        ("breakers", set()),
        ("gates", set()),
    ],
)
async def test_values_of_a_store(kind: Kind, expected: set[str]) -> None:
    async with Holdfast("memory:") as app:
        await app.declare("mail")
        await app.enqueue("mail:send", id="a")
        await app.enqueue("mail:send", id="b", queue="mail", max_attempts=1)
        [lease] = await app.lease("mail")
        await app.bury(lease, "no")
        await app.schedules.add(Schedule(name="nightly", cron="@daily", job=app.job("t")))
        await seed.save_worker(app, "w")
        assert await values_of(app, kind) == expected


def test_candidates_are_printed_and_trouble_is_silent(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os._exit", int)
    assert cli("--complete", "holdfast queue show ") == (0, "", ""), "there is no store"
    cli("queue", "create", "mail")
    seed.enqueue("j")
    assert cli("--complete", "holdfast queue show m").out == "mail\n"
    assert cli("--complete", "holdfast list --queue=d").out == "--queue=default\n"
    assert cli("--complete", "holdfast config get url").out == ""
    assert "alert-age\n" in cli("--complete", "holdfast config get ").out
    unreachable = "holdfast --url http://127.0.0.1:9 queue show "
    assert cli("--complete", unreachable) == (0, "", "")


def test_a_name_that_a_shell_would_interpret_is_not_offered(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hostile(*_: object) -> set[str]:
        return {"$(reboot)", "a b", "`x`", "fine", "new\nline"}

    monkeypatch.setattr("os._exit", int)
    monkeypatch.setattr(completion, "_read", hostile)
    assert cli("--complete", "holdfast queue show ").out == "fine\n"


def test_bash_completes_values_from_the_store(tmp_path: Path) -> None:
    seeded = run_program(tmp_path, "enqueue", "--task", "mail:send", "--id", "j")
    assert seeded.code == 0
    program = tmp_path / "holdfast"
    program.write_text(f"#!{sys.executable}\n{CODE.format(name='holdfast')}\n")
    program.chmod(0o700)
    (tmp_path / "script").write_text(bash_script("holdfast"))
    # Bash splits words at colons.
    ask = """
source ./script
COMP_WORDS=(./holdfast list --task mail : s) COMP_CWORD=5
COMP_LINE="./holdfast list --task mail:s" COMP_POINT=${#COMP_LINE}
_holdfast_values
printf '%s\\n' "${COMPREPLY[@]}"
"""
    ran = subprocess.run(
        ["bash", "-c", ask],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "send\n", ran
