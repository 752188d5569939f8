"""How help looks: plain text in two columns, 80 wide, which is kept in `help/`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

_WIDTH = 80
_WIDE = 10_000
_LEFT_MAX = 26


class TwoColumns:
    """What stands on the command line to the left, what it means to the right."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        rows = [(_label(entry), _meaning(entry)) for entry in panel.entries]
        if not rows:
            return
        left = min(_LEFT_MAX, max(len(label) for label, _ in rows)) + 4
        _print(console, f"{panel.title}:")
        for label, meaning in rows:
            lines = textwrap.wrap(meaning, _WIDTH - left) or [""]
            if len(label) + 4 > left:
                lines.insert(0, "")
            _print(console, f"  {label}".ljust(left) + lines[0])
            for line in lines[1:]:
                _print(console, " " * left + line)
        _print(console, "")

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        _print(console, f"Usage: {str(usage).strip()}\n")

    def render_description(self, console: Console, options: ConsoleOptions, text: Any) -> None:
        paragraphs = _plain(text, _WIDE).split("\n\n")
        _print(console, "\n\n".join(_filled(each) for each in paragraphs) + "\n")


def variables_told(command: Sequence[str]) -> str:
    """Where a command's help says how else its flags can be given."""
    prefix = "_".join(["HOLDFAST", *command]).upper().replace("-", "_")
    return (
        f"Every flag has a variable too: {prefix}_ and its name in capitals; HOLDFAST_URL and "
        "HOLDFAST_JSON are for all commands."
    )


def _label(entry: HelpEntry) -> str:
    names = [*entry.positive_shorts, *entry.positive_names, *entry.negative_names]
    label = ", ".join([*filter(None, [entry.positional_label]), *names])
    return f"{label} {entry.metavar}" if entry.metavar and names else label


def _meaning(entry: HelpEntry) -> str:
    parts = [_plain(entry.description, _WIDE)]
    if entry.choices:
        parts.append(f"[{' | '.join(entry.choices)}]")
    if entry.required:
        parts.append("[required]")
    if entry.default is not None and entry.default not in ("False", "None"):
        parts.append(f"[default: {entry.default}]")
    return " ".join(filter(None, parts))


def _filled(paragraph: str) -> str:
    """Examples, which are set in, stay as they are."""
    lines = paragraph.splitlines()
    return (
        paragraph if lines[-1:] and lines[-1].startswith(" ") else textwrap.fill(paragraph, _WIDTH)
    )


def _plain(text: Any, width: int) -> str:
    from rich.console import Console

    plain = Console(width=width, color_system=None, force_terminal=False)
    with plain.capture() as capture:
        plain.print("" if text is None else text, highlight=False, markup=False)
    return "\n".join(line.rstrip() for line in capture.get().strip().splitlines())


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
