"""Help pages: stored as text in `help/`, so that they are printed without loading the parser.

`root.write_help_pages` writes them; a test compares them with the parser's help.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

FOLDER = Path(__file__).with_name("help")
NAME = "holdfast"
_NAMES = ("holdfast", "queuectl")
RENAMED = {"migrate-data": "move-store"}
"""Former names of commands, which still work and are shown nowhere."""
_WIDTH = 80
_UNWRAPPED = 10_000
_LEFT_MAX = 26
_NO_BREAK_SPACE = "\xa0"
"""By number: to read its name, the compiler would load the names of all characters."""
_SEVERAL = {"COMMAND": "-- COMMAND...", "IDS": "IDS...", "NAMES": "NAMES..."}
"""Arguments that take several values."""
_DEFAULT = re.compile(r" (\[default: [^\]]*\])$")
# Not wrapped: an example, a quoted text, defaults and short lists of choices.
_UNBROKEN = re.compile(r"e\.g\. (?:\"[^\"]*\"|\S+)|\"[^\"]{1,30}\"|\[[^\]]{1,48}\]")


def program() -> str:
    """The program as the user types it: `./hf` in a clone, else the name it was started by."""
    given = os.environ.get("HOLDFAST_COMMAND", "")
    if given and given.isprintable():
        return given
    name = os.path.basename(sys.argv[0]) if sys.argv else ""  # noqa: PTH119 (pathlib is slower)
    return name if name in _NAMES else NAME


def requested_page(arguments: Sequence[str]) -> str | None:
    """The page for `--help` anywhere before `--`, or for the name of a group alone."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    line = [word for word in arguments[:end] if word != "--json"]
    if "--help" not in line and "-h" not in line:
        return page(line) if line == list(arguments) and _is_group(line) else None
    flags = [at for at, word in enumerate(line) if word.startswith("-")]
    words = line[: flags[0]]
    if len(words) < 2 or not _is_group(words[:1]):
        return page(words[:1])
    return page(words[:2])


def _is_group(words: Sequence[str]) -> bool:
    return len(words) == 1 and words[0].isalpha() and any(FOLDER.glob(f"{NAME}-{words[0]}-*.txt"))


def page(command: Sequence[str]) -> str | None:
    """The page of a command such as `queue create`; None if there is no such command."""
    command = [RENAMED.get(word, word) for word in command]
    if not all(word.replace("-", "").isalpha() for word in command):
        return None
    path = FOLDER / f"{'-'.join([NAME, *command])}.txt"
    return with_program_name(path.read_text()) if path.exists() else None


def with_program_name(text: str) -> str:
    """The page with the name by which the program was started."""
    return re.sub(rf"\b{NAME}(?=\s)", lambda _match: program(), text)


def with_argument_names(page: str) -> str:
    """The page with the names of optional arguments in its usage line, which the parser writes as
    ARGS."""
    described = re.search(r"^Arguments:\n(.*?)\n\n", page, re.DOTALL | re.MULTILINE)
    usage, end, rest = page.partition("\n")
    usage = re.sub(r" \[ARGS(\.\.\.)?\]$", "", usage)
    for entry in re.split(r"\n(?=  \S)", described[1]) if described else ():
        name = entry.split()[0]
        if "[required]" not in entry:
            usage += f" [{_SEVERAL.get(name, name)}]"
        else:
            usage = re.sub(rf" {name}(?= |$)", f" {_SEVERAL.get(name, name)}", usage)
    return usage + end + rest


def variables_note(command: Sequence[str]) -> str:
    """The last paragraph of a page: the environment variables of the flags."""
    prefix = "_".join(["HOLDFAST", *command]).upper().replace("-", "_")
    return (
        f"Each flag can be set by an environment variable: {prefix}_ and its name in capitals. "
        "HOLDFAST_URL and HOLDFAST_JSON apply to every command."
    )


class TwoColumns:
    """Lays out help as plain text: flags on the left, what they do on the right."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        rows = [(_label(entry), _meaning(entry)) for entry in panel.entries]
        if not rows:
            return
        left = min(_LEFT_MAX, max(len(label) for label, _ in rows)) + 4
        _print(console, f"{panel.title}:")
        for label, meaning in rows:
            lines = textwrap.wrap(meaning, _WIDTH - left, break_on_hyphens=False) or [""]
            if len(label) + 4 > left:
                lines.insert(0, "")
            _print(console, f"  {label}".ljust(left) + lines[0])
            for line in lines[1:]:
                _print(console, " " * left + line)
        _print(console, "")

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        _print(console, f"Usage: {str(usage).strip()}\n")

    def render_description(self, console: Console, options: ConsoleOptions, text: Any) -> None:
        paragraphs = _plain(text, _UNWRAPPED).split("\n\n")
        _print(console, "\n\n".join(_filled(each) for each in paragraphs) + "\n")


def _label(entry: HelpEntry) -> str:
    names = [*entry.positive_shorts, *entry.positive_names, *entry.negative_names]
    label = ", ".join([*filter(None, [entry.positional_label]), *names])
    return f"{label} {entry.metavar}" if entry.metavar and names else label


def _meaning(entry: HelpEntry) -> str:
    text = _plain(entry.description, _UNWRAPPED)
    written = _DEFAULT.search(text)
    parts = [_DEFAULT.sub("", text)]
    if entry.choices:
        parts.append(f"[{' | '.join(entry.choices)}]")
    if entry.required:
        parts.append("[required]")
    if written:
        parts.append(written[1])
    elif entry.default is not None and entry.default not in ("False", "None", '""'):
        default = "on" if entry.default == "True" else str(entry.default).removesuffix(".0")
        parts.append(f"[default: {default}]")
    return _UNBROKEN.sub(
        lambda match: match[0].replace(" ", _NO_BREAK_SPACE), " ".join(filter(None, parts))
    )


def _filled(paragraph: str) -> str:
    """Wrap a paragraph; indented examples stay as they are."""
    lines = paragraph.splitlines()
    if lines and lines[-1].startswith(" "):
        return paragraph
    return textwrap.fill(paragraph, _WIDTH, break_on_hyphens=False)


def _plain(text: Any, width: int) -> str:
    from rich.console import Console

    plain = Console(width=width, color_system=None, force_terminal=False)
    with plain.capture() as capture:
        plain.print("" if text is None else text, highlight=False, markup=False)
    return "\n".join(line.rstrip() for line in capture.get().strip().splitlines())


def _print(console: Console, text: str) -> None:
    line = text.replace(_NO_BREAK_SPACE, " ")
    console.print(line, highlight=False, markup=False, soft_wrap=True)
