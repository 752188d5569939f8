"""Fingerprints that group similar failures: a hash of the error's type, the innermost frames of
the user's code, and the error text without ids, numbers and other values.

Texts and traces are hostile: any input gives a fingerprint in bounded time. A wrong guess merges
or splits groups and has no other effect.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from holdfast.core.model import Failure, FailureKind, Reason

FRAMES_MAX = 3
TEXT_MAX = 500
_OTHERS_MAX = 8
_TRACE_LINES_MAX = 2_000

_ABOUT_THE_TASK = (FailureKind.TIMEOUT, FailureKind.OVERDUE, FailureKind.EXPIRED)
"""Kinds that are grouped by task: their message and trace are arbitrary."""

_ABOUT_CODE = (
    *("AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "TypeError"),
    "UnboundLocalError",
)
"""Errors whose messages quote names in the code; those do not vary between jobs."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
FRAME = re.compile(
    r'[\s|+]{0,100}File "(?P<path>[^"]{1,1000})", line (?P<line>\d+),? in (?P<function>\S{1,200})'
)
MARGIN = re.compile(r"\s*[|+] ")
"""The margin of the lines of an exception group."""
_ERROR = re.compile(r"([\w.]{1,200})(?::|$)")
_FIRST_IS_LAST = "(most recent call first):"
_LAST_IS_LAST = "Traceback (most recent call last):"
_FOREIGN = re.compile(r"(?i)/(?:site-packages|dist-packages|lib(?:64)?/python\d[^/]*)/|^<frozen ")
_OWN = re.compile(r"/(?:site-packages|dist-packages|src)/holdfast/")
_INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>")
"""Comprehensions have frames of their own up to Python 3.11 only."""

_VARIABLE = re.compile(
    r"""
      (?P<kept>\b(?:http|status|code|errno|error|sqlstate)\b[\s:=#]{0,3}\d{1,5}\b)
    | (?P<url>\b[a-z][a-z0-9+.-]{1,15}://[^\s'"<>]+)
    | (?P<email>\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8})
    | (?P<text>(?<!\w)[bru]{0,2}(?:
        '\[[^\n]*?\]' | '(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*"
        | '[^'\n]*' | "[^"\n]*" | `[^`\n]*` | “[^”\n]*” | ‘[^’\n]*’))
    | (?P<uuid>\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b)
    | (?P<address>\b0x[0-9a-f]+\b)
    | (?P<path>(?:\b[a-z]:)?(?:[/\\][\w.@+~-]+){2,}[/\\]?)
    | (?P<id>\b(?=[a-z_]*\d)(?=[\d_]*[a-z])\w{16,}\b | \b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,}\b)
    | (?P<ip>(?<![\w:])(?=[\d:]*(?:[a-f]|::))[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:]))
    | (?P<several>\bsub-exceptions?\b)
    | (?P<n>(?:(?<![\w.)-])[-+])?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_DATA = re.compile(r"\{[^{}\n]*\}")
_DEPTH_MAX = 10
_VALUE = "<>"
_VALUES = re.compile(r"<>(?:[\s,;]*<>)+")
"""A run of values counts as one, because its length varies too."""
_NAME = re.compile(r"\W[A-Za-z_][\w.]{0,99}\W")


def fingerprint(reason: Reason, failure: Failure | None, task: str = "") -> str:
    """Twelve characters that are equal for similar failures.

    An error with frames in the user's code is grouped across tasks; one without is grouped by task.
    """
    if failure is None:
        parts = [str(reason), task]
    elif failure.kind in _ABOUT_THE_TASK:
        parts = [str(failure.kind), task]
    else:
        kind = failure.type or str(failure.kind)
        text = normal(failure.message, names=kind in _ABOUT_CODE)
        where = frames(failure.trace, kind, crashed=failure.kind is FailureKind.CRASH)
        parts = [str(failure.kind), kind, str(failure.exit_code), str(failure.signal), text]
        parts += where or [task]
    # Replaced as when stored, so that a cleaned text has the same fingerprint as the original.
    whole = _LONE_SURROGATE.sub("\ufffd", "\0".join(parts))
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


def frames(trace: str, kind: str = "", *, crashed: bool = False) -> list[str]:
    """The innermost frames of the user's code, as file name and function, and the innermost frame
    of each error that led to it. Without line numbers, which change with every edit, and without
    folders, which differ between machines.

    For a crashed process only the frames it died in count; any other traceback is output.
    """
    found = [each for each in _errors(trace) if each.died or not crashed]
    if not found:
        return []
    *_, main = [each for each in found if each.kind == kind.rpartition(".")[2]] or found
    others = sorted({f"{each.kind} {''.join(each.own(1))}" for each in found if each is not main})
    inner = main.own(FRAMES_MAX)
    # The frame at which a recursion reached the limit is arbitrary.
    inner = sorted(inner) if main.kind == "RecursionError" else inner
    return [*inner, *others[:_OTHERS_MAX]]


def normal(text: str, *, names: bool = False) -> str:
    """An error text without ids, numbers, paths and quoted values; with `names`, quoted names
    stay."""

    def named(match: re.Match[str]) -> str:
        what = match.lastgroup
        if what == "kept" or (names and what == "text" and _NAME.fullmatch(match[0])):
            return match[0]
        return _VALUE

    plain = _VARIABLE.sub(named, text[: 4 * TEXT_MAX])
    for _ in range(_DEPTH_MAX):
        # Replace the innermost values first: a value that contains values is one value, too.
        plain, found = _DATA.subn(_VALUE, plain)
        if not found:
            break
    return " ".join(_VALUES.sub(_VALUE, plain).split())[:TEXT_MAX]


def is_user_code(path: str) -> bool:
    """True unless the file belongs to Python, to an installed package or to Holdfast."""
    plain = path.replace("\\", "/")
    return not _OWN.search(plain) and not _FOREIGN.search(plain)


class _Error(NamedTuple):
    """One error in a trace, and its frames, innermost last."""

    kind: str
    places: tuple[tuple[str, str], ...]
    died: bool

    def own(self, most: int) -> list[str]:
        """The innermost distinct frames of the user's code, or of libraries if there are none."""
        paths = [(path.replace("\\", "/"), name) for path, name in self.places]
        ours = [each for each in paths if not _OWN.search(each[0]) and each[1] not in _INLINED]
        users = [each for each in ours if not _FOREIGN.search(each[0])]
        distinct = dict.fromkeys(f"{_file(path)}:{name}" for path, name in reversed(users or ours))
        return list(distinct)[:most]


def _file(path: str) -> str:
    folder, _, name = path.rpartition("/")
    if name in ("__init__.py", "__main__.py"):
        return f"{folder.rpartition('/')[2]}/{name}"
    # A notebook cell has a number as its file name.
    return re.sub(r"\d{3,}", "<n>", name)


def _errors(trace: str) -> list[_Error]:
    """Every error of a trace in order: causes before effects, groups before their parts."""
    found: list[_Error] = []
    places: list[tuple[str, str]] = []
    died = False

    def end(kind: str) -> None:
        if places:
            inner_last = reversed(places) if died else places
            found.append(_Error(kind, tuple(inner_last), died))
            places.clear()

    lines = trace.splitlines()
    if len(lines) > _TRACE_LINES_MAX:
        lines = lines[: _TRACE_LINES_MAX // 2] + lines[-_TRACE_LINES_MAX // 2 :]
    for written in lines:
        margin = MARGIN.match(written)
        line = written[margin.end() :] if margin else written
        frame = FRAME.match(line)
        if frame:
            places.append((frame["path"], frame["function"]))
        elif line.endswith((_FIRST_IS_LAST, _LAST_IS_LAST)):
            end("")
            died = line.endswith(_FIRST_IS_LAST)
        elif places and not died and (error := _ERROR.match(line)):
            end(error[1].rpartition(".")[2])
    end("")
    return found
