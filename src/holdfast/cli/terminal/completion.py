"""Completion by the shell: the scripts, and the values from the store that they ask for.

The scripts know commands and flags. For a value, such as the name of a queue, they run `holdfast
--complete LINE`, which prints one candidate per line. It is silent and quick: a store that does not
exist, is not reachable or does not answer in time has no candidates.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

from cyclopts import Parameter

from holdfast.cli.help_pages import page, program
from holdfast.cli.output import COMMON, Common, print_json, say

if TYPE_CHECKING:
    from holdfast.app.application import Holdfast

_LIMIT_S = 2.0
_JOBS = 200
"""The newest jobs whose ids are offered."""
# No blank, quote or other character that a shell would interpret.
_SAFE = re.compile(r"[A-Za-z0-9_.:@/+-]+\Z")

Kind: TypeAlias = Literal[
    "queues",
    "tasks",
    "jobs",
    "dead letters",
    "workers",
    "redrives",
    "breakers",
    "schedules",
    "gates",
    "settings",
]
_FLAGS: dict[str, Kind] = {
    "--queue": "queues",
    "--queues": "queues",
    "--dead-queue": "queues",
    "--task": "tasks",
    "--worker": "workers",
    "--to": "workers",
    "--parent": "jobs",
    "--after": "jobs",
}
_GROUPS: dict[str, Kind] = {
    "job": "jobs",
    "dlq": "dead letters",
    "queue": "queues",
    "worker": "workers",
    "redrive": "redrives",
    "breaker": "breakers",
    "schedule": "schedules",
    "gate": "gates",
    "config": "settings",
}
_ARGUMENTS = ("ID", "IDS...", "NAME", "NAMES...", "QUEUE")
_NEW_NAMES = ("create", "add")


class WantedValues(NamedTuple):
    """The values to offer for the last word of a line: those of `kind` that begin with `prefix`,
    each after `head`, which is `--queue=` or nothing."""

    kind: Kind
    prefix: str
    head: str = ""
    url: str | None = None


def wanted_values(line: str) -> WantedValues | None:
    """The kind of value that the last word of a command line may be; None if it is not one from
    the store."""
    words = _split(line)
    if len(words) < 2 or "--" in words:
        return None
    *given, last = words[1:]
    command, rest, url = _command(given)
    text = page(command) if command else None
    if text is None:
        return None
    if last.startswith("--") and "=" in last:
        flag, _, last = last.partition("=")
        kind = _of_flag(flag, command)
        return None if kind is None else WantedValues(kind, last, f"{flag}=", url)
    if last.startswith("-"):
        return None
    valued = _valued_flags(text)
    if rest and rest[-1] in valued:
        kind = _of_flag(rest[-1], command)
        return None if kind is None else WantedValues(kind, last, url=url)
    before = _positional_count(rest, valued)
    kind = _of_argument(command, text.partition("\n")[0], before)
    return None if kind is None else WantedValues(kind, last, url=url)


def _split(line: str) -> list[str]:
    """The words of a line; the last one is the word that is being typed."""
    try:
        words = shlex.split(line)
    except ValueError:
        return []
    return [*words, ""] if line[-1:].isspace() else words


def _command(given: Sequence[str]) -> tuple[list[str], list[str], str | None]:
    """The command of a line, the words after it, and the URL of the store."""
    command: list[str] = []
    rest: list[str] = []
    url: str | None = None
    words = iter(given)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == "--url":
            url = value if equals else next(words, None)
        elif not rest and not word.startswith("-") and page([*command, word]) is not None:
            command.append(word)
        else:
            rest.append(word)
    return command, rest, url


def _valued_flags(text: str) -> set[str]:
    """The flags on a help page that take a value: its kind follows their names in capitals."""
    found = re.findall(r"^  (?:-\w, )?(--[a-z-]+(?:, --[a-z-]+)*) [A-Z]", text, re.MULTILINE)
    return {flag for names in found for flag in names.split(", ")}


def _positional_count(rest: Sequence[str], valued: Iterable[str]) -> int:
    before = ["", *rest]
    return sum(
        not word.startswith("-") and before[at] not in valued for at, word in enumerate(rest)
    )


def _of_flag(flag: str, command: Sequence[str]) -> Kind | None:
    # There --to is the URL of a store.
    return None if command[0] == "move-store" else _FLAGS.get(flag)


def _of_argument(command: Sequence[str], usage: str, before: int) -> Kind | None:
    """The kind of the argument that follows `before` others, by the usage line of the command."""
    names = [word.strip("[]") for word in usage.split()[2 + len(command) :] if word != "[OPTIONS]"]
    many = [name for name in names if name.endswith("...")]
    name = names[before] if before < len(names) else (many or [""])[-1]
    if command[-1] in _NEW_NAMES or name not in _ARGUMENTS:
        return None
    if name == "NAME" and "QUEUE" in names:
        return None
    return _GROUPS.get(command[0])


def print_values(line: str) -> None:
    """Print the candidates for the last word of a line, one per line."""
    wanted = wanted_values(line)
    if wanted is None:
        return
    values: set[str] = set()
    with suppress(Exception):
        values = asyncio.run(_read(wanted))
    for value in sorted(values):
        if value.startswith(wanted.prefix) and _SAFE.match(value):
            print(wanted.head + value)
    print(end="", flush=True)
    # A thread that still waits for the store must not hold up the shell.
    os._exit(0)


async def _read(wanted: WantedValues) -> set[str]:
    if wanted.kind == "settings":
        from holdfast.config import SETTINGS

        return set(SETTINGS)
    from holdfast.cli.session import open_app

    async with asyncio.timeout(_LIMIT_S), open_app(Common(url=wanted.url)) as app:
        return await values_of(app, wanted.kind)


async def values_of(app: Holdfast, kind: Kind) -> set[str]:
    """The candidates of a kind in a store."""
    from holdfast.core.model import JobFilter, State

    match kind:
        case "queues":
            return {view.queue.name for view in await app.queues(counts=False)}
        case "jobs":
            return {job.id for job in (await app.find(JobFilter(), limit=_JOBS)).jobs}
        case "dead letters":
            dead = JobFilter(states=(State.DEAD,))
            return {job.id for job in (await app.find(dead, limit=_JOBS)).jobs}
        case "workers":
            return {view.name for view in await app.workers.all()}
        case "redrives":
            return {view.redrive.id for view in await app.redrives.all()}
        case "schedules":
            return {schedule.name for schedule in await app.schedules.all()}
        case "tasks":
            return await _tasks(app)
        case "breakers":
            from holdfast.ops.breakers import BREAKERS

            return set(await BREAKERS.values(app.engine))
        case "gates":
            from holdfast.ops.gates import GATES

            return set(await GATES.values(app.engine))
        case "settings":
            return set()


async def _tasks(app: Holdfast) -> set[str]:
    """The tasks that workers have, and those of the newest jobs."""
    from holdfast.core.model import JobFilter
    from holdfast.ops.settings import declared_tasks

    names = set(await declared_tasks(app.engine))
    if app.engine.traits.records:
        names |= {task for view in await app.workers.all() for task in view.record.tasks}
    if app.engine.traits.inspect:
        names |= {job.task for job in (await app.find(JobFilter(), limit=_JOBS)).jobs}
    return names


_FILES = {
    "bash": "~/.local/share/bash-completion/completions/{name}",
    "zsh": "~/.zfunc/_{name}",
    "fish": "~/.config/fish/completions/{name}.fish",
}
_BASH_END = """
_{name}_values() {{
  _{name} "$@"
  local line="${{COMP_LINE:0:COMP_POINT}}"
  local word="${{line##*[[:space:]]}}" head="" value
  # Commands, flags and choices are known; anything else may be a value from the store.
  if (( ${{#COMPREPLY[@]}} )) || [[ $word == -* && $word != *=* ]]; then return; fi
  # Bash splits words at these characters, and replaces only the last part.
  local breaks="="
  [[ $COMP_WORDBREAKS == *:* ]] && breaks=":="
  [[ $word == *["$breaks"]* ]] && head="${{word%"${{word##*["$breaks"]}}"}}"
  while IFS= read -r value; do
    COMPREPLY+=("${{value#"$head"}}")
  done < <("${{COMP_WORDS[0]}}" --complete "$line" 2>/dev/null)
}}
complete -F _{name}_values {name}
"""
_ZSH_END = """
_{name}_values() {{
  local -a values
  values=("${{(@f)$({name} --complete "$LBUFFER" 2>/dev/null)}}")
  compadd -a values
}}
if [[ $funcstack[1] == _{name} ]]; then
  _cyclopts_{name} "$@"
else
  compdef _cyclopts_{name} {name}
fi
"""
_ZSH_COMMANDS = "'1: :->cmds' \\\n"
_ZSH_COMMON = "'--url[Store or server.]:url:' \\\n    '--json[Print only JSON.]' \\\n    "
_FISH_VALUES = "({name} --complete (commandline -cp) 2>/dev/null)"
_NOTES = {"zsh": " (and put fpath+=~/.zfunc before compinit in ~/.zshrc)"}


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Your shell.")],
    /,
    *,
    common: Common = COMMON,
) -> None:
    """Print the completion script for a shell.

    The script completes commands and flags and, from the store, ids and the names of queues, tasks,
    workers, schedules, breakers and gates. A note on standard error says where to save it.
    """
    from holdfast.cli.root import build

    name = program() if program().isalnum() else "holdfast"
    script = completed(build().generate_completion(prog_name=name, shell=shell), shell, name)
    path = _FILES[shell].format(name=name)
    if common.json:
        print_json({"shell": shell, "program": name, "script": script, "file": path})
        return
    print(script, end="" if script.endswith("\n") else "\n")
    note = _NOTES.get(shell, "")
    say(f"to install it for new shells: {program()} completion {shell} > {path}{note}")


def completed(script: str, shell: str, name: str) -> str:
    """Complete the generated script: common flags before the command, values from the store; in
    zsh, the call when the script is sourced; in fish, no file completion for commands.
    """
    from holdfast.cli.root import GROUPS, added_groups

    flags = "|".join(sorted(flag[2:] for flag in _FLAGS))
    if shell == "bash":
        script = script.replace('("--help"', '("--url" "--json" "--help"')
        return script.rstrip() + "\n" + _BASH_END.format(name=name)
    if shell == "zsh":
        script = script.replace(_ZSH_COMMANDS, _ZSH_COMMON + _ZSH_COMMANDS)
        # An argument or a flag without an action of its own.
        bare = (
            rf"^( +'(?:(?:\d+|\*):(?:[^:'\\]|\\.)+|\*?--(?:{flags})\[(?:[^\]\\]|\\.)*\]:[\w-]+))'"
        )
        script = re.sub(bare, rf"\1:_{name}_values'", script, flags=re.MULTILINE)
        return script.rstrip() + "\n" + _ZSH_END.format(name=name)
    values = _FISH_VALUES.format(name=name)
    script = re.sub(rf"( -l (?:{flags})) -r ", rf"\1 -x -a '{values}' ", script)
    for words in ("", *GROUPS, *added_groups()):
        where = f"complete -c {name} -n '__fish_{name}_using_command {words}'"
        script += f"{where} -f\n{where} -l json -d 'Print only JSON.'\n"
        script += f"{where} -l url -x -d 'Store or server.'\n"
    return script + f"complete -c {name} -f -a '{values}'\n"
