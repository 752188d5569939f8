"""Text for people: escaped hostile text, no credentials, counts with plurals, durations."""

from __future__ import annotations

import re
import unicodedata

UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
"""The units of a duration, in milliseconds."""
_CREDENTIALS = re.compile(r"(://)[^\s@]*(?:@[^\s@/]*)*@")
_XML_BYTES = bytes(each for each in range(256) if each >= 0x20 or each in b"\t\n\r")
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def printable(text: str, *, one_line: bool = False) -> str:
    """The text with control and invisible characters escaped, such as \\x1b, so that the output of
    a job cannot control a terminal."""
    kept = "" if one_line else "\n\t"
    return "".join(
        char if char in kept or unicodedata.category(char) not in _UNSEEN else _escaped(char)
        for char in text
    )


def without_credentials(text: str) -> str:
    """The text with user and password of every URL in it left out. A password that is not
    percent-encoded may contain anything but spaces."""
    return _CREDENTIALS.sub(r"\1", text)


def xml_bytes(text: str) -> bytes | None:
    """The UTF-8 bytes of a text; None if XML 1.0 cannot carry one of its characters."""
    try:
        wire = text.encode()
    except UnicodeEncodeError:
        # A surrogate that stands alone.
        return None
    return wire if _is_xml(text, wire) else None


def xml_text(wire: bytes) -> str | None:
    """The text of UTF-8 bytes; None if they are not UTF-8, or XML 1.0 cannot carry them."""
    try:
        text = wire.decode()
    except UnicodeDecodeError:
        return None
    return text if _is_xml(text, wire) else None


def _is_xml(text: str, wire: bytes) -> bool:
    # Deleting the legal bytes is many times faster than a regular expression.
    if wire.translate(None, _XML_BYTES):
        return False
    return text.isascii() or not ("\ufffe" in text or "\uffff" in text)


def counted(count: int, noun: str) -> str:
    """1 job, 2 jobs, 1,000 jobs."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def kind_of(value: object) -> str:
    """The type of a value in an error: an int, a dict, None."""
    return "None" if value is None else with_article(type(value).__name__)


def with_article(noun: str) -> str:
    """The noun after a or an, by its first letter, which is right for names of types."""
    return f"{'an' if noun[:1].lower() in tuple('aeio') else 'a'} {noun}"


def not_written(path: object, error: OSError) -> str:
    """Why a file cannot be written, and the remedy."""
    match error:
        case FileNotFoundError() | NotADirectoryError():
            folder = str(path).rpartition("/")[0] or "/"
            why = f"there is no folder {folder}; create it first"
        case PermissionError():
            why = "permission denied; change the permissions of the folder, or give another path"
        case _:
            why = error.strerror or str(error)
    return f"{path} cannot be written: {why}"


def not_read(path: object, error: OSError) -> str:
    """Why a file cannot be read, and the remedy."""
    match error:
        case FileNotFoundError() | NotADirectoryError():
            why = "there is no such file; check the path"
        case PermissionError():
            why = "permission denied; change its permissions, or run as its owner"
        case IsADirectoryError():
            why = "it is a folder; give a file"
        case _:
            why = error.strerror or str(error)
    return f"{path} cannot be read: {why}"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def show_ms(ms: int) -> str:
    """A duration as its shortest exact text, such as 250ms, 30s or 2h."""
    for unit in ("w", "d", "h", "m", "s"):
        if ms and ms % UNITS_MS[unit] == 0:
            return f"{ms // UNITS_MS[unit]}{unit}"
    return f"{ms}ms"
