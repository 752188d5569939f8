"""Which command runs which function, and what its failure looks like: one line and a code."""

from __future__ import annotations

import difflib
import io
import logging
import os
import re
import sys
from typing import Any

from cyclopts import App, CycloptsError, Parameter

from holdfast import __version__, tracing
from holdfast.cli.exits import Exit, exit_for
from holdfast.cli.helping import TwoColumns, variables_told
from holdfast.cli.pages import NAME, program
from holdfast.cli.variables import EVERYWHERE, Variables
from holdfast.core.text import printable
from holdfast.errors import HoldfastError, NotAccepting, UnknownQueue, UsageError
from holdfast.logs import log_to_stderr

GROUPS: dict[str, str] = {
    "worker": "Start workers, see them, and ask things of them.",
    "config": "Settings that are stored with the queues.",
    "job": "Look at jobs, and act on those that are named.",
    "queue": "Create queues, see them, change them and empty them.",
    "dlq": "Dead letters: see them, put them back to work, or let them go.",
    "redrive": "Dead letters that upkeep puts back to work bit by bit.",
    "breaker": "Circuit breakers of tasks, and of hosts that webhooks go to.",
    "schedule": "Jobs that are enqueued again and again.",
    "token": "Tokens for the server: who may do what over HTTP.",
    "quota": "How much a tenant or a namespace may put in over HTTP.",
}

# The words of each command, the function that runs it, and what its group's help says of it. The
# function may be async; it returns its exit code, or None for done.
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("up", "workers:up", "Start workers, upkeep and a server on one file."),
    ("serve", "serve:serve", "Serve the queues over HTTP."),
    ("demo", "demo:demo", "Run a lively mixture of real jobs and watch it."),
    ("bench", "bench:bench", "Measure what this store does on this machine."),
    ("chaos", "chaos:chaos", "Kill and freeze workers, and see that no job is lost."),
    ("top", "top:top", "Watch queues, workers and running jobs, live."),
    ("worker start", "workers:start", "Start workers here, in the foreground."),
    ("worker run", "workers:run", "Start workers for the tasks of your application."),
    ("worker list", "workers:show_all", "List the workers and how well they are."),
    ("worker stop", "workers:stop", "Ask workers to release what they have and end."),
    ("worker drain", "workers:drain", "Ask workers to finish what they have and end."),
    ("worker cordon", "workers:cordon", "Let workers lease nothing more."),
    ("worker uncordon", "workers:uncordon", "Let workers lease again."),
    ("status", "status:status", "Show every queue and every worker, and how they stand."),
    ("enqueue", "enqueue:enqueue", "Put a job in a queue, or many."),
    ("completion", "completion:completion", "Print the completion script for a shell."),
    ("config get", "config:get", "Print the value of a setting."),
    ("config set", "config:set_", "Store a setting."),
    ("config unset", "config:unset", "Forget a stored setting."),
    ("config list", "config:show_all", "Show every setting and where its value is from."),
    ("backup", "backup:backup", "Copy the queue file while work goes on."),
    ("migrate-data", "migrate:migrate_data", "Move everything to another store."),
    ("scaling", "scaling:scaling", "Say how many workers would keep the waiting short."),
    ("distribute", "distribute:distribute", "Bring jobs of many queues to one, in fair turns."),
    ("list", "jobs:list_all", "List jobs, newest first."),
    ("job list", "jobs:list_all", "List jobs, newest first."),
    ("job show", "jobs:show", "Show one job and what happened to it."),
    ("job explain", "jobs:explain", "Say why a job is not running, and what would change it."),
    ("job timeline", "jobs:timeline", "Show what happened to a job, oldest first."),
    ("job logs", "logs:logs", "Show what a job printed."),
    ("job cancel", "acts:cancel", "Cancel jobs that wait, and ask those that run to stop."),
    ("job retry", "acts:retry", "Run dead, cancelled or done jobs again."),
    ("job edit", "edits:edit", "Change a job that waits or is dead."),
    ("job reroute", "rerouting:reroute", "Give jobs that wait for one worker to another."),
    ("job expedite", "acts:expedite", "Make jobs that wait due now, in front of all others."),
    ("job delete", "acts:delete", "Remove jobs for good."),
    ("queue list", "queues:list_all", "List the queues: their settings and how they stand."),
    ("queue show", "queues:show", "Show one queue: its settings and how it stands."),
    ("queue create", "queues:create", "Create a queue."),
    ("queue update", "queues:update", "Change settings of a queue."),
    ("queue pause", "queues:pause", "Let no job of a queue start, until it is resumed."),
    ("queue resume", "queues:resume", "Let the jobs of a queue start again."),
    (
        "queue limit",
        "flow:limit",
        "Bound the jobs of a queue: how many at a time, how many starts.",
    ),
    ("queue unlimit", "flow:unlimit", "Take a limit of a queue away."),
    ("queue limits", "flow:show_limits", "Show the limits of a queue, and who holds their slots."),
    ("queue tenants", "flow:show_tenants", "Show the tenants of a queue, and what they get."),
    ("queue drain", "emptying:drain", "Accept no new job, and wait until the queue is empty."),
    ("queue clear", "emptying:clear", "Delete the jobs of a queue that wait."),
    ("queue delete", "emptying:delete", "Remove a queue and every job in it."),
    ("dlq groups", "deadgroups:groups", "Group dead letters by what killed them."),
    ("dlq list", "dead:list_all", "List dead letters, newest first, with what went wrong."),
    ("dlq show", "dead:show", "Show one dead letter and what happened to it."),
    ("dlq retry", "dead:retry", "Put dead letters back to work: some, or all."),
    ("dlq purge", "dead:purge", "Delete dead letters for good: some, or all."),
    ("dlq export", "dead:export", "Write dead letters as lines of JSON."),
    ("dlq quarantine", "deadgroups:quarantine", "List jobs that crashed their workers."),
    ("redrive list", "redrives:list_all", "List redrives, oldest first."),
    ("redrive show", "redrives:show", "Show a redrive, and how far it is."),
    ("redrive cancel", "redrives:cancel", "Put back no more."),
    ("breaker list", "breakers:list_all", "List the breakers, and how they stand."),
    ("breaker show", "breakers:show", "Show how a breaker stands."),
    ("breaker open", "breakers:open_", "Let no job start behind a breaker."),
    ("breaker close", "breakers:close", "Let jobs start again."),
    ("schedule list", "schedules:list_all", "List the schedules."),
    ("schedule add", "scheduling:add", "Enqueue a job again and again."),
    ("schedule edit", "scheduling:edit", "Change a schedule."),
    ("schedule remove", "schedules:remove", "Remove a schedule."),
    ("schedule pause", "schedules:pause", "Let a schedule tick no more, until it is resumed."),
    ("schedule resume", "schedules:resume", "Let a schedule tick again."),
    ("schedule run", "schedules:run", "Enqueue the job of a schedule now."),
    ("schedule preview", "scheduling:preview", "Show the next ticks of a schedule or a rule."),
    ("token create", "tokens:create", "Make a token and print it, this once."),
    ("token list", "tokens:list_all", "List the tokens: what they may do, and until when."),
    ("token revoke", "tokens:revoke", "Let nobody in with a token any more."),
    ("quota list", "quotas:list_all", "List the quotas of a namespace and its tenants."),
    ("quota set", "quotas:set_", "Bound what a tenant or a namespace may put in."),
    ("quota remove", "quotas:remove", "Take a quota away."),
    ("audit", "audit:audit", "Show what operators did over HTTP, the newest first."),
    ("cleanup", "cleanup:cleanup", "Delete finished jobs that are old."),
    ("doctor", "doctor:doctor", "Look at everything that could be wrong, and say what helps."),
)

_PLAIN: dict[str, Any] = {"help_format": "plaintext", "help_formatter": TwoColumns()}
_EVERYWHERE_TOLD = (
    "Every command takes --url, or HOLDFAST_URL; without one it works on the file holdfast.db "
    "here. With --json it prints JSON alone."
)


def build(name: str = NAME, *, in_full: bool = False) -> App:
    """The parser. Commands are imported when they are run, or when their help is shown.

    `in_full` takes the help of each command from its function; else it is the one line.
    """
    app = App(
        name=name,
        help="A durable work queue that holds every job fast until it is done.",
        version=f"holdfast {__version__}",
        help_epilogue=_EVERYWHERE_TOLD,
        config=Variables(show=False),
        default_parameter=Parameter(negative_iterable=()),
        **_PLAIN,
    )
    for group, does in GROUPS.items():
        app.command(App(name=group, help=does, **_PLAIN))
    for words, function, does in COMMANDS:
        *above, last = words.split()
        (app[above[0]] if above else app).command(
            f"holdfast.cli.{function}",
            name=last,
            help=None if in_full else does,
            help_epilogue=variables_told(words.split()),
        )
    return app


def helps() -> dict[tuple[str, ...], str]:
    """The help of every command, 80 columns wide."""
    from rich.console import Console

    def tell(command: tuple[str, ...], app: App) -> None:
        printed = io.StringIO()
        app.help_print(list(command), console=Console(file=printed, width=80))
        lines = [line.rstrip() for line in printed.getvalue().splitlines()]
        told[command] = re.sub(r"\n{3,}", "\n\n", "\n".join(lines) + "\n")

    told: dict[tuple[str, ...], str] = {}
    short, full = build(), build(in_full=True)
    for group in ((), *((name,) for name in GROUPS)):
        tell(group, short)
    for words, _, _ in COMMANDS:
        tell(tuple(words.split()), full)
    return told


def dispatch(arguments: list[str]) -> int:
    """Run the command; whatever goes wrong is one line on stderr, with a code that stays."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character gets it written out.
        sys.stdout.reconfigure(errors="backslashreplace")
    if not os.environ.get("HOLDFAST_URL"):
        # Empty is the same as not there, as it is for the library.
        os.environ.pop("HOLDFAST_URL", None)
    log_to_stderr(program(), logging.WARNING)
    line = command_kept(common_last(arguments))
    try:
        tracing.begin("holdfast-server" if line[:1] == ["serve"] else "holdfast")
        refuse_unknown(line)
        code = build(program())(
            line,
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except CycloptsError as error:
        return _fail(_reworded(" ".join(str(error).split())), UsageError.code, Exit.USAGE)
    except UnknownQueue as error:
        return _fail(_creatable(str(error)), error.code, exit_for(error))
    except NotAccepting as error:
        return _fail(_openable(str(error)), error.code, exit_for(error))
    except HoldfastError as error:
        return _fail(str(error), error.code, exit_for(error))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return code if isinstance(code, int) else Exit.DONE


def common_last(arguments: list[str]) -> list[str]:
    """What every command takes may also stand before its name, or inside it: move it behind."""
    moved: list[str] = []
    words: list[str] = []
    rest = list(arguments)
    while rest and rest[0] != "--":
        if rest[0].partition("=")[0] in EVERYWHERE:
            moved.append(rest.pop(0))
            if moved[-1] == "--url" and rest:
                moved.append(rest.pop(0))
        elif not words and rest[0] in GROUPS:
            words.append(rest.pop(0))
        else:
            break
    end = rest.index("--") if "--" in rest else len(rest)
    return [*words, *rest[:end], *moved, *rest[end:]]


def refuse_unknown(arguments: list[str]) -> None:
    """A word that is no command, before every command is imported to find the likeliest."""
    if arguments[:1] and arguments[0].startswith("--") and len(arguments[0]) > 2:
        flag = arguments[0].partition("=")[0]
        if flag not in (*EVERYWHERE, "--help", "--version"):
            raise UsageError(
                f"unknown option {flag[:80]!r}: the flags of a command stand behind it"
            )
    given = [word for word in arguments[:2] if not word.startswith("-")]
    depth = 2 if given[:1] and given[0] in GROUPS else 1
    names = {tuple(words.split()[:depth]) for words, _, _ in COMMANDS}
    if tuple(given[:depth]) in names:
        return
    there = sorted(name[-1] for name in names if name[:-1] == tuple(given[: depth - 1]))
    if len(given) >= depth:
        wrong = given[depth - 1]
        close = difflib.get_close_matches(wrong, there, 1)
        remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(there)}"
        raise UsageError(f"unknown command {wrong[:80]!r}: {remedy}")
    if any(word.partition("=")[0] in EVERYWHERE for word in arguments):
        raise UsageError(f"a command is missing: there are {', '.join(there)}")


def command_kept(arguments: list[str]) -> list[str]:
    """Only the first `--` is the parser's: a second one shows `enqueue` that there was one."""
    if arguments[:1] != ["enqueue"] or "--" not in arguments:
        return arguments
    end = arguments.index("--")
    return [*arguments[:end], "--", *arguments[end:]]


def _creatable(text: str) -> str:
    """A queue is declared in Python, and created here."""
    create = rf"\1: create it with {program()} queue create \2"
    return re.sub(r"(queue (\S+) does not exist): declare it first$", create, text)


def _openable(text: str) -> str:
    named = re.search(r"queue (\S+) accepts no", text)
    name = named[1] if named else "NAME"
    return f"{text}: open it with {program()} queue update {name} --accepting"


def _reworded(text: str) -> str:
    """What the parser says, in this program's words."""
    many = re.fullmatch(r"Unused Tokens: \[(.*)\]\.", text)
    if many:
        return f"too many arguments: {many[1]}"
    missing = re.fullmatch(r'Command "(.*)" parameter (.*) requires an argument\.', text)
    if missing:
        lack = "needs a value" if missing[2].startswith("--") else "is missing"
        return f"{missing[2]} {lack}: see {program()} {missing[1]} --help"
    return text


def _fail(text: str, code: str, exit_code: Exit) -> int:
    print(f"{program()}: {printable(text, one_line=True)} ({code})", file=sys.stderr)
    return exit_code
