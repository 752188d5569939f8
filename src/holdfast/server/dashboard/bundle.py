"""Joins the modules of the page to one script, and its style sheets to one.

A hundred small files take a browser a hundred requests, and compress a third worse than together.
Each module becomes a function that runs when it is first needed, with its imports and exports as
constants. It reads the forms of import and export that our files and the vendored ones use, and
fails on others. Comments and indentation are left out: no text of the page depends on them. Pure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Final

_IMPORT = re.compile(
    r'^import\s*(?:(?P<default>[\w$]+)|\{(?P<names>[^}]*)\})\s*from\s*"(?P<target>[^"]+)";',
    re.MULTILINE,
)
_LATER = re.compile(r'\bimport\("([^"]+)"\)')
_EXPORT_ALL = re.compile(r'^export \* from "([^"]+)";\n', re.MULTILINE)
_EXPORT_NAMES = re.compile(r"\bexport\s*\{([^}]*)\};?")
_EXPORT_DEFAULT = re.compile(
    r"\bexport default (?:(?P<function>(?:async )?function (?P<name>\w+))|)"
)
_EXPORT = re.compile(
    r"^export (?P<what>(?:async )?function|const|class) (?P<name>[\w$]+)", re.MULTILINE
)
_COMMENT = re.compile(r"^[ \t]*//.*\n", re.MULTILINE)
_STYLE_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
_LEFT_OVER = re.compile(r"^\s*(?:import|export)\b", re.MULTILINE)
_URL: Final = "import.meta.url"
_DEFAULT: Final = "$default"

_FRAME = """\
const $loaded = {{}};
const $use = (name) => ($loaded[name] ??= $modules[name]());
const $load = async (name) => $use(name);
const $modules = {{
{modules}}};
$use("{first}");
"""


def join_modules(texts: Mapping[str, str], first: str) -> str:
    """One script that runs the module `first`. `texts` are all modules by their names, such as
    `lib/api.js`."""
    modules = "".join(
        f'"{name}": () => {{\n{_function_body(name, text)}}},\n' for name, text in texts.items()
    )
    return _FRAME.format(modules=modules, first=first)


def join_styles(texts: Mapping[str, str], page: str) -> str:
    """The style sheets in the order in which the page names them."""
    joined = "\n".join(texts[name] for name in re.findall(r'href="dashboard/([^"]+\.css)"', page))
    return _INDENT.sub("", _STYLE_COMMENT.sub("", joined))


def _function_body(name: str, text: str) -> str:
    """A module without its imports and exports: a function that returns what it exports."""

    def use(target: str) -> str:
        return f'$use("{posixpath.normpath(posixpath.join(posixpath.dirname(name), target))}")'

    def imported(found: re.Match[str]) -> str:
        default = found["default"]
        names = f"default: {default}" if default else found["names"].replace(" as ", ": ")
        return f"const {{{names}}} = {use(found['target'])};"

    exported: list[str] = []

    def note(found: re.Match[str]) -> str:
        exported.append(found["name"])
        return f"{found['what']} {found['name']}"

    def note_default(found: re.Match[str]) -> str:
        exported.append(f"default: {found['name'] or _DEFAULT}")
        return found["function"] or f"const {_DEFAULT} = "

    def note_names(found: re.Match[str]) -> str:
        for each in filter(None, (part.strip() for part in found[1].split(","))):
            own, _, public = each.partition(" as ")
            exported.append(f"{public}: {own}" if public else own)
        return ""

    def note_all(found: re.Match[str]) -> str:
        exported.append(f"...{use(found[1])}")
        return ""

    text = _COMMENT.sub("", text)
    text = _IMPORT.sub(imported, text)
    text = _LATER.sub(lambda found: use(found[1]).replace("$use", "$load", 1), text)
    text = text.replace(_URL, f'new URL("{name}", {_URL}).href')
    text = _EXPORT_ALL.sub(note_all, text)
    text = _EXPORT_NAMES.sub(note_names, text)
    text = _EXPORT_DEFAULT.sub(note_default, text)
    text = _EXPORT.sub(note, text)
    left_over = _LEFT_OVER.search(text)
    assert left_over is None, f"{name}: an import or export in a form that cannot be joined"
    text = _INDENT.sub("", text.rstrip())
    return f"{text}\nreturn {{ {', '.join(exported)} }};\n"
