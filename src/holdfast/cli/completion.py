"""`holdfast completion`: the script that teaches a shell this program's words."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from holdfast.cli.output import COMMON, Common, print_json, say
from holdfast.cli.pages import program

_FILES = {
    "bash": "~/.local/share/bash-completion/completions/{name}",
    "zsh": "~/.zfunc/_{name}",
    "fish": "~/.config/fish/completions/{name}.fish",
}
_HINTS = {"zsh": " (and put fpath+=~/.zfunc before compinit in ~/.zshrc)"}


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Your shell.")],
    /,
    *,
    common: Common = COMMON,
) -> None:
    """Print the completion script for a shell; it goes in a file that the shell reads."""
    from holdfast.cli.root import build

    name = program() if program().isalnum() else "holdfast"
    script = build().generate_completion(prog_name=name, shell=shell)
    place = _FILES[shell].format(name=name)
    if common.json:
        print_json({"shell": shell, "program": name, "script": script, "file": place})
        return
    print(script, end="" if script.endswith("\n") else "\n")
    say(f"keep it for new shells: {program()} completion {shell} > {place}{_HINTS.get(shell, '')}")
