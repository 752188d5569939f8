"""The command table, the parser, and how errors are printed: one line with a stable code."""

from __future__ import annotations

import difflib
import io
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from cyclopts import App, ArgumentCollection, CycloptsError, Parameter, Token, UnknownOptionError
from cyclopts.config import Env

from holdfast import __version__, tracing
from holdfast.cli.help_pages import (
    FOLDER,
    NAME,
    RENAMED,
    TwoColumns,
    program,
    variables_note,
    with_argument_names,
)
from holdfast.cli.output import Exit, exit_for
from holdfast.cli.terminal.screen import NO_PAGER, PAGER_VARIABLE
from holdfast.core.text import printable
from holdfast.errors import (
    ConfigError,
    Forbidden,
    HoldfastError,
    NotAccepting,
    UnknownQueue,
    UsageError,
)
from holdfast.process import log_to_stderr

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMON_FLAGS = ("--url", "--json")
NO_PAGER_FLAG = "--no-pager"
_NAMED_MAX = 15
"""Commands that an error lists. The help page is easier to read than a longer list."""

GROUPS: dict[str, str] = {
    "worker": "Start, list and control workers.",
    "config": "Read and change stored settings.",
    "job": "Inspect and change jobs.",
    "queue": "Create, inspect, change and empty queues.",
    "dlq": "Inspect, retry and delete dead letters: jobs that failed for good.",
    "redrive": "List, follow and cancel redrives, which retry dead letters gradually.",
    "breaker": "Inspect, open and close circuit breakers, which pause failing tasks and hosts.",
    "schedule": "Manage schedules, which enqueue jobs regularly.",
    "gate": "Manage gates, which turn messages into jobs and jobs into messages.",
    "token": "Create, list and revoke API tokens.",
    "quota": "Limit how much callers may enqueue over HTTP.",
    "record": "Remove stored records that cannot be read.",
}

# The words of each command and the function that runs it. The first line of the function's
# docstring is its help in the list of commands. It may be async, and returns an exit code or None.
COMMANDS: tuple[tuple[str, str], ...] = (
    ("up", "serve:up"),
    ("serve", "serve:serve"),
    ("demo", "demo:demo"),
    ("bench", "bench:bench"),
    ("chaos", "chaos:chaos"),
    ("top", "status:top"),
    ("worker start", "workers:start"),
    ("worker run", "workers:run"),
    ("worker list", "workers:show_all"),
    ("worker stop", "workers:stop"),
    ("worker drain", "workers:drain"),
    ("worker cordon", "workers:cordon"),
    ("worker uncordon", "workers:uncordon"),
    ("status", "status:status"),
    ("enqueue", "enqueue:enqueue"),
    ("completion", "terminal.completion:completion"),
    ("config get", "admin:get_setting"),
    ("config set", "admin:set_setting"),
    ("config unset", "admin:unset_setting"),
    ("config list", "admin:list_settings"),
    ("backup", "upkeep:backup"),
    ("move-store", "move_store:move_store"),
    ("scaling", "workers:scaling"),
    ("distribute", "upkeep:distribute"),
    ("list", "jobs:list_all"),
    ("job list", "jobs:list_all"),
    ("job show", "jobs:show"),
    ("job explain", "jobs:explain"),
    ("job timeline", "jobs:timeline"),
    ("job logs", "jobs:logs"),
    ("job cancel", "jobs:cancel"),
    ("job retry", "jobs:retry"),
    ("job edit", "jobs:edit"),
    ("job reroute", "jobs:reroute"),
    ("job expedite", "jobs:expedite"),
    ("job delete", "jobs:delete"),
    ("queue list", "queues:list_all"),
    ("queue show", "queues:show"),
    ("queue create", "queues:create"),
    ("queue update", "queues:update"),
    ("queue pause", "queues:pause"),
    ("queue resume", "queues:resume"),
    ("queue limit", "queues:limit"),
    ("queue unlimit", "queues:unlimit"),
    ("queue limits", "queues:show_limits"),
    ("queue tenants", "queues:show_tenants"),
    ("queue drain", "queues:drain"),
    ("queue clear", "queues:clear"),
    ("queue delete", "queues:delete"),
    ("dlq groups", "dead_letters:groups"),
    ("dlq list", "dead_letters:list_all"),
    ("dlq show", "dead_letters:show"),
    ("dlq retry", "dead_letters:retry"),
    ("dlq purge", "dead_letters:purge"),
    ("dlq export", "dead_letters:export"),
    ("dlq quarantine", "dead_letters:quarantine"),
    ("redrive list", "redrives:list_all"),
    ("redrive show", "redrives:show"),
    ("redrive cancel", "redrives:cancel"),
    ("breaker list", "breakers:list_all"),
    ("breaker show", "breakers:show"),
    ("breaker open", "breakers:open_"),
    ("breaker close", "breakers:close"),
    ("schedule list", "schedules:list_all"),
    ("schedule add", "schedules:add"),
    ("schedule edit", "schedules:edit"),
    ("schedule remove", "schedules:remove"),
    ("schedule pause", "schedules:pause"),
    ("schedule resume", "schedules:resume"),
    ("schedule run", "schedules:run"),
    ("schedule preview", "schedules:preview"),
    ("gate list", "gates:list_all"),
    ("gate show", "gates:show"),
    ("gate add", "gates:add"),
    ("gate pause", "gates:pause"),
    ("gate resume", "gates:resume"),
    ("gate remove", "gates:remove"),
    ("gate run", "gates:run"),
    ("token create", "admin:create_token"),
    ("token list", "admin:list_tokens"),
    ("token revoke", "admin:revoke_token"),
    ("quota list", "admin:list_quotas"),
    ("quota set", "admin:set_quota"),
    ("quota remove", "admin:remove_quota"),
    ("record remove", "admin:remove_record"),
    ("audit", "admin:audit"),
    ("cleanup", "upkeep:cleanup"),
    ("doctor", "upkeep:doctor"),
)

ENTRY_POINTS: Final = "holdfast.commands"
"""Entry point group of other packages: the name is a group of commands, the object a module. The
first line of its docstring is the help of the group, and its table COMMANDS has the words of each
command below the group and its function, `module:function`."""

_PLAIN: dict[str, Any] = {"help_format": "plaintext", "help_formatter": TwoColumns()}
_COMMON_NOTE = (
    "Every command takes --url or HOLDFAST_URL. Without either, it uses the file holdfast.db in"
    " the current directory. With --json, it prints only JSON. At a terminal, long lists open in a"
    " pager (HOLDFAST_PAGER, else PAGER, else less), unless --no-pager is given."
)


@cache
def added_groups() -> dict[str, EntryPoint]:
    """The groups that packages add. One cannot replace a command of this one."""
    # Few commands need it, and each would take a tenth longer.
    from importlib.metadata import entry_points

    own = {words.split()[0] for words, _ in COMMANDS}
    return {each.name: each for each in entry_points(group=ENTRY_POINTS) if each.name not in own}


def added_commands(group: str) -> list[tuple[str, str]]:
    """The commands of an added group, as in COMMANDS, with the whole names of their modules."""
    return [(f"{group} {word}", path) for word, path in _added_module(group).COMMANDS]


def is_group(word: str) -> bool:
    """Whether this is a group of commands. Packages are asked only about words that are not ours:
    looking for entry points takes time."""
    if word in GROUPS or any(words.split()[0] == word for words, _ in COMMANDS):
        return word in GROUPS
    return word in added_groups()


def shipped() -> tuple[list[str], list[str]]:
    """The commands and groups of this distribution, whose help pages are stored."""
    groups = [name for name, each in added_groups().items() if _is_shipped(each)]
    commands = [words for words, _ in COMMANDS]
    commands += [words for group in groups for words, _ in added_commands(group)]
    return commands, [*GROUPS, *groups]


def _is_shipped(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == NAME


@cache
def _added_module(group: str) -> ModuleType:
    try:
        module: ModuleType = added_groups()[group].load()
    except ImportError as error:
        raise ConfigError(
            f"the commands of {group} cannot be loaded: {error}: install the missing package,"
            " e.g. pip install 'holdfast[aws]'"
        ) from None
    return module


def build(name: str = NAME, *, added: Sequence[str] | None = None, only: str | None = None) -> App:
    """The parser. The module of a command is imported when it runs or its help is rendered; that of
    an added group when it is among `added`, by default all. With `only`, it knows only the commands
    whose first word this is: building all of them takes longer than parsing the command line."""
    app = App(
        name=name,
        help="A durable work queue that keeps every job until it is done.",
        version=f"holdfast {__version__}",
        help_epilogue=_COMMON_NOTE,
        config=EnvironmentVariables(show=False),
        default_parameter=Parameter(negative_iterable=()),
        group_parameters="Options",
        **_PLAIN,
    )
    app["--help"].help = "Show this page."
    app["--version"].help = "Show the version."
    for group, summary in GROUPS.items():
        if only in (None, group):
            app.command(App(name=group, help=summary, **_PLAIN))
    for words, function in COMMANDS:
        *above, last = words.split()
        if only not in (None, words.split()[0]):
            continue
        (app[above[0]] if above else app).command(
            f"holdfast.cli.{function}", name=last, help_epilogue=variables_note(words.split())
        )
    for group in added_groups() if added is None else added:
        summary = (_added_module(group).__doc__ or "").partition("\n")[0]
        app.command(App(name=group, help=summary, **_PLAIN))
        for words, function in added_commands(group):
            note = variables_note(words.split())
            app[group].command(function, name=words.split()[-1], help_epilogue=note)
    return app


def help_pages() -> dict[tuple[str, ...], str]:
    """The help of every command and group, 80 columns wide."""
    from rich.console import Console

    commands, groups = shipped()
    app = build(added=[group for group in groups if group not in GROUPS])
    pages: dict[tuple[str, ...], str] = {}
    # Groups last: a command has a summary once its module is imported.
    named = [*(tuple(words.split()) for words in commands), (), *((name,) for name in groups)]
    for command in named:
        printed = io.StringIO()
        app.help_print(list(command), console=Console(file=printed, width=80))
        lines = [line.rstrip() for line in printed.getvalue().splitlines()]
        page = re.sub(r"\n{3,}", "\n\n", "\n".join(lines) + "\n")
        if command[-1:] == ("edit",):
            # A field that is not given keeps its value.
            page = re.sub(r"\s+\[default: [^\]]*\]", "", page)
        pages[command] = with_argument_names(page)
    return pages


def write_help_pages() -> None:
    """Rewrite the stored help pages."""
    rendered = help_pages()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for command, text in rendered.items():
        (FOLDER / f"{'-'.join([NAME, *command])}.txt").write_text(text)


def dispatch(arguments: list[str]) -> int:
    """Run a command. An error is printed as one line on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot show is escaped.
        sys.stdout.reconfigure(errors="backslashreplace")
    if not os.environ.get("HOLDFAST_URL"):
        # An empty variable counts as unset, as in the library.
        os.environ.pop("HOLDFAST_URL", None)
    log_to_stderr(program(), "warning")
    line = keep_separator(move_common_flags(without_pager_flag(arguments)))
    line[:1] = [RENAMED.get(word, word) for word in line[:1]]
    try:
        tracing.start_exporter("holdfast-server" if line[:1] == ["serve"] else "holdfast")
        refuse_unknown(line)
        added = [word for word in line[:1] if word not in GROUPS and is_group(word)]
        own = {words.split()[0] for words, _ in COMMANDS}
        only = next((word for word in line[:1] if word in own), None)
        code = build(program(), added=added, only=only)(
            line,
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except UnknownOptionError as error:
        from holdfast.cli.flags import unknown_flag

        names = [name for each in error.argument_collection if each.parse for name in each.names]
        wrong = error.token.keyword or error.token.value
        text = unknown_flag(wrong, names, *(error.command_chain or ()))
        return _fail(text, UsageError.code, Exit.USAGE)
    except CycloptsError as error:
        return _fail(_reworded(" ".join(str(error).split())), UsageError.code, Exit.USAGE)
    except UnknownQueue as error:
        from holdfast.cli.flags import with_create_command

        return _fail(with_create_command(str(error)), error.code, exit_for(error))
    except Forbidden as error:
        return _fail(_with_scope_command(str(error)), error.code, exit_for(error))
    except NotAccepting as error:
        return _fail(_with_open_command(str(error)), error.code, exit_for(error))
    except HoldfastError as error:
        return _fail(str(error), error.code, exit_for(error))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return code if isinstance(code, int) else Exit.DONE


def without_pager_flag(arguments: list[str]) -> list[str]:
    """The line without --no-pager, which may stand anywhere, and which switches the pager off."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if NO_PAGER_FLAG not in arguments[:end]:
        return arguments
    os.environ[PAGER_VARIABLE] = NO_PAGER
    return [word for word in arguments[:end] if word != NO_PAGER_FLAG] + arguments[end:]


def move_common_flags(arguments: list[str]) -> list[str]:
    """--url and --json may precede the command or its subcommand: move them after it."""
    moved: list[str] = []
    words: list[str] = []
    rest = list(arguments)
    while rest and rest[0] != "--":
        if rest[0].partition("=")[0] in COMMON_FLAGS:
            moved.append(rest.pop(0))
            if moved[-1] == "--url" and rest:
                moved.append(rest.pop(0))
        elif not words and is_group(rest[0]):
            words.append(rest.pop(0))
        else:
            break
    end = rest.index("--") if "--" in rest else len(rest)
    return [*words, *rest[:end], *moved, *rest[end:]]


def refuse_unknown(arguments: list[str]) -> None:
    """Refuse an unknown command. The parser would import every command to suggest one."""
    depth = 2 if arguments[:1] and is_group(arguments[0]) else 1
    given: list[str] = []
    for word in arguments[:depth]:
        if word.startswith("-"):
            flag = word.partition("=")[0]
            if len(word) > 1 and flag not in (*COMMON_FLAGS, "-h", "--help", "--version"):
                raise UsageError(f'unknown option "{flag[:80]}": put flags after the command')
            break
        given.append(word)
    added = added_commands(given[0]) if depth == 2 and given[0] not in GROUPS else []
    names = {tuple(words.split()[:depth]) for words, _ in (*COMMANDS, *added)}
    if tuple(given) in names:
        return
    if depth == 1:
        names |= {(group,) for group in added_groups()}
    known = sorted(name[-1] for name in names if name[:-1] == tuple(given[: depth - 1]))
    if len(given) == depth:
        wrong = given[-1]
        remedy = _did_you_mean(wrong, known) or _where_to_look(known)
        raise UsageError(f'unknown command "{wrong[:80]}": {remedy}')
    if any(word.partition("=")[0] in COMMON_FLAGS for word in arguments):
        raise UsageError(f"the command is missing: {_where_to_look(known)}")


def _did_you_mean(wrong: str, known: list[str]) -> str:
    """A command that is spelled almost like this, or those of groups that are called so."""
    if close := difflib.get_close_matches(wrong, known, 1):
        return f"did you mean {close[0]}?"
    inside = [f'"{words}"' for words, _ in COMMANDS if words.split()[1:] == [wrong]]
    return f"did you mean {' or '.join(sorted(inside))}?" if inside else ""


def _where_to_look(known: list[str]) -> str:
    if len(known) > _NAMED_MAX:
        return f'see "{program()} --help"'
    return f"expected one of {', '.join(known)}"


def keep_separator(arguments: list[str]) -> list[str]:
    """The parser drops the first `--`: a second one tells `enqueue` that a command follows."""
    if arguments[:1] != ["enqueue"] or "--" not in arguments:
        return arguments
    end = arguments.index("--")
    return [*arguments[:end], "--", *arguments[end:]]


class EnvironmentVariables(Env):
    """A variable for every flag: HOLDFAST_, the command and the flag, in capitals.

    `enqueue --max-attempts` is HOLDFAST_ENQUEUE_MAX_ATTEMPTS; common flags have one variable for
    all commands, such as HOLDFAST_URL. A flag overrides its variable, an empty variable counts as
    unset, and commas separate several values. Cyclopts would also match parts of names, so that
    HOLDFAST_ENQUEUE_KEY_WINDOW could set --key.
    """

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        for argument in arguments:
            if argument.children or argument.tokens or not argument.parse:
                continue
            if not argument.name.startswith("--"):
                continue
            name = variable(commands, argument.name)
            value = os.environ.get(name)
            if value:
                for index, part in enumerate(argument.env_var_split(value, ",")):
                    argument.append(Token(keyword=name, value=part, source="env", index=index))


def variable(command: Sequence[str], flag: str) -> str:
    """The environment variable of a command's flag."""
    words = [flag] if flag in COMMON_FLAGS else [*command, flag]
    return "_".join(["HOLDFAST", *(word.lstrip("-").replace("-", "_").upper() for word in words)])


def _with_scope_command(text: str) -> str:
    """Add the command that makes a token with the scope that this one lacks."""
    named = re.search(r'scope "([a-z-]+)"', text)
    if named is None:
        return text
    create = f"{program()} token create NAME --scope {named[1]}"
    return f'{text}; an administrator creates such a token with "{create}"'


def _with_open_command(text: str) -> str:
    named = re.search(r'queue "?([\w.-]+)', text)
    name = named[1] if named else "NAME"
    return f'{text}: open it with "{program()} queue update {name} --accepting"'


def _reworded(text: str) -> str:
    """An error of the parser in this program's words."""
    unused = re.fullmatch(r"Unused Tokens: \[(.*)\]\.", text)
    if unused:
        return f"too many arguments: {unused[1]}"
    missing = re.fullmatch(r'Command "(.*)" parameter (.*) requires an argument\.', text)
    if missing:
        problem = "needs a value" if missing[2].startswith("--") else "is missing"
        return f'{missing[2]} {problem}: see "{program()} {missing[1]} --help"'
    return text


def _fail(text: str, code: str, exit_code: Exit) -> int:
    print(f"{program()}: {printable(text, one_line=True)} ({code})", file=sys.stderr)
    return exit_code
