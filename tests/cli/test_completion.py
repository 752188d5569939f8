"""Completion scripts for shells."""

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.cli import root
from tests.cli.program import Cli, run_program


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
    if path := shutil.which(shell):
        checked = subprocess.run([path, "-n"], input=ran.out, text=True, check=False)
        assert checked.returncode == 0


def test_a_script_as_json(cli: Cli) -> None:
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


@pytest.mark.parametrize("program", ["holdfast", "queuectl"])
def test_bash_completes(program: str, tmp_path: Path) -> None:
    script = run_program(tmp_path, "completion", "bash", name=program).out
    (tmp_path / "script").write_text(script)
    asked = ASK.format(words=f"{program} queue", at=2, program=program)
    ran = subprocess.run(
        ["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert {"create", "list"} <= set(ran.stdout.split()), ran
