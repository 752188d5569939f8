"""The advisory report of `./hf check`: long files and functions, small modules, full folders.

It never fails: it names places that are worth a look. `tests/unit/test_tree.py` has hard bounds.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.sources import Source, imported_modules, read_all

FILE_LINES = 600
FUNCTION_LINES = 60
SMALL_LINES = 60
FOLDER_FILES = 25
SHOWN_MAX = 12


def main() -> None:
    """Print every section that has something to show."""
    sources = read_all()
    sections = {
        f"files over {FILE_LINES} lines": long_files(sources),
        f"functions over {FUNCTION_LINES} lines": long_functions(sources),
        f"modules under {SMALL_LINES} lines with one importer": small_modules(sources),
        f"folders over {FOLDER_FILES} files": full_folders(sources),
    }
    for title, rows in sections.items():
        shown = list(rows)
        if shown:
            print(f"{title}:")
            print("\n".join(f"  {row}" for row in shown[:SHOWN_MAX]))
            if len(shown) > SHOWN_MAX:
                print(f"  and {len(shown) - SHOWN_MAX} more")


def long_files(sources: list[Source]) -> Iterator[str]:
    """Files that may have more than one concern, the longest first."""
    sizes = sorted(((source.lines, source.module) for source in sources), reverse=True)
    return (f"{lines} {module}" for lines, module in sizes if lines > FILE_LINES)


def long_functions(sources: list[Source]) -> Iterator[str]:
    """Functions that may do more than one thing, the longest first."""
    found = []
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found.append((lines, f"{source.module}:{node.lineno} {node.name}"))
    return (f"{lines} {where}" for lines, where in sorted(found, reverse=True))


def small_modules(sources: list[Source]) -> Iterator[str]:
    """Modules that may belong into the only module that imports them."""
    importers = defaultdict(set)
    for source in sources:
        for target in imported_modules(source, sources):
            importers[target].add(source.module)
    for source in sources:
        users = importers[source.module]
        if source.lines < SMALL_LINES and len(users) == 1 and not source.is_package:
            yield f"{source.lines} {source.module}, imported by {users.pop() or 'holdfast'}"


def full_folders(sources: list[Source]) -> Iterator[str]:
    """Folders that may need a sub-package."""
    counts = Counter(source.folder for source in sources)
    return (f"{count} {folder}" for folder, count in counts.items() if count > FOLDER_FILES)


if __name__ == "__main__":
    main()
