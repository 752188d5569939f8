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
_ZSH_END = """
if [[ $funcstack[1] == _{name} ]]; then
  _cyclopts_{name} "$@"
else
  compdef _cyclopts_{name} {name}
fi
"""
_ZSH_COMMANDS = "'1: :->cmds' \\\n"
_ZSH_EVERYWHERE = "'--url[Where the jobs are.]:url:' \\\n    '--json[Print JSON alone.]' \\\n    "
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
    script = _mended(build().generate_completion(prog_name=name, shell=shell), shell, name)
    place = _FILES[shell].format(name=name)
    if common.json:
        print_json({"shell": shell, "program": name, "script": script, "file": place})
        return
    print(script, end="" if script.endswith("\n") else "\n")
    say(f"keep it for new shells: {program()} completion {shell} > {place}{_HINTS.get(shell, '')}")


def _mended(script: str, shell: str, name: str) -> str:
    """What the generator leaves out: what all commands take may stand before their names, a zsh
    script must also begin to complete when it is loaded, and fish offers files by itself."""
    if shell == "bash":
        return script.replace('("--help"', '("--url" "--json" "--help"')
    if shell == "zsh":
        script = script.replace(_ZSH_COMMANDS, _ZSH_EVERYWHERE + _ZSH_COMMANDS)
        return script.rstrip() + "\n" + _ZSH_END.format(name=name)
    if shell == "fish":
        from holdfast.cli.root import GROUPS

        for words in ("", *GROUPS):
            where = f"complete -c {name} -n '__fish_{name}_using_command {words}'"
            script += f"{where} -f\n{where} -l json -d 'Print JSON alone.'\n"
            script += f"{where} -l url -x -d 'Where the jobs are.'\n"
    return script
