"""Regular expressions of text in requests, and what they ask for in words.

OpenAPI describes a bounded text by its expression. A person who sent a wrong one reads an error.
"""

from __future__ import annotations

import re
from typing import Final

NO_NUL: Final = r"^[^\x00]*$"
DURATION: Final = r"^[0-9]{1,6}(\.[0-9]{1,3})?(ms|s|m|h|d|w)?$"
RATE: Final = r"^[0-9]{1,7}/[0-9]{0,6}(ms|s|m|h|d)( burst [0-9]{1,7})?$"
LABEL: Final = "^[^=\\x00]+="
CURSOR: Final = "^[0-9]{1,400}$"

_IN_WORDS = {
    NO_NUL: "text without NUL characters",
    DURATION: 'a duration such as "30s", "5m", "2h" or "1d", or a number of seconds',
    RATE: 'a rate such as "100/m", "5/s" or "100/m burst 20"',
    LABEL: "a name and a value, such as region=eu",
    CURSOR: "`after` of the last page",
}
_CHARACTERS = re.compile(r"\^\[([^]^\\]+)\]\{(\d+),(\d+)\}\$")
_LETTERS_AND_DIGITS = "A-Za-z0-9"
_MISMATCH = re.compile(r"Expected `str` matching regex ('(?:[^'\\]|\\.)*')")


def without_patterns(error: str) -> str:
    """An error of msgspec with words in place of a regular expression."""
    return _MISMATCH.sub(lambda found: _expected(found[0], found[1]), error)


def _expected(error: str, quoted: str) -> str:
    import ast  # every worker would load it, and few need it

    pattern = ast.literal_eval(quoted)
    if pattern in _IN_WORDS:
        return f"expected {_IN_WORDS[pattern]}"
    characters = _CHARACTERS.fullmatch(pattern)
    if characters is None:
        return error
    allowed, least, most = characters.groups()
    others = allowed.removeprefix(_LETTERS_AND_DIGITS)
    kinds = "characters" if others == allowed else "letters, digits or characters"
    return f"expected {least} to {most} {kinds} of {others}"
