"""Hard bounds on the shape of the package: few modules, no crowded folder, no cycle."""

import re
from collections import Counter

import pytest

from tests.shape import FOLDER_FILES
from tests.sources import Source, imported_modules, read_all

MODULES_MAX = 475
ROOT_MODULES_MAX = 8
# Riddles: modules and classes have the usual terms, such as cache, queue, limit and schedule.
RIDDLES = frozenset(
    "aftermath aside births crew door doors ears fortune grounds hand hands keeper kept meeting"
    " nursery patience picture pieces portions quick room rooms scout sharing standing".split()
)
GERUNDS = ("testing", "tracing", "routing", "scaling", "logging", "housekeeping")


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return read_all()


def test_the_package_has_few_modules(sources: list[Source]) -> None:
    assert len(sources) <= MODULES_MAX


def test_the_root_has_few_modules(sources: list[Source]) -> None:
    packages = {source.module for source in sources if source.is_package}
    root = [name for source in sources if "." not in (name := source.module)]
    assert len([name for name in root if name not in packages or name == ""]) <= ROOT_MODULES_MAX


def test_no_folder_is_crowded(sources: list[Source]) -> None:
    counts = Counter(source.folder for source in sources)
    assert {folder: count for folder, count in counts.items() if count > FOLDER_FILES} == {}


def test_modules_are_nouns_or_plain_verbs(sources: list[Source]) -> None:
    last = {source.module: source.module.rpartition(".")[2] for source in sources}
    gerunds = [module for module, name in last.items() if name.endswith("ing")]
    assert [module for module in gerunds if last[module] not in GERUNDS] == []


def test_names_are_no_riddles(sources: list[Source]) -> None:
    names = [source.module.rpartition(".")[2] for source in sources]
    names += [name for source in sources for name in source.class_names]
    assert [name for name in names if RIDDLES & words_of(name)] == []


@pytest.mark.parametrize("name", ["kept_reads", "KeptReads", "rooms", "_Door"])
def test_a_riddle_is_found(name: str) -> None:
    assert RIDDLES & words_of(name)


def test_a_class_name_is_used_once(sources: list[Source]) -> None:
    """Private ones too: a reader searches for the name."""
    counts: Counter[str] = Counter()
    for source in sources:
        counts.update(source.class_names)
    assert [name for name, count in counts.items() if count > 1] == []


def test_no_module_imports_itself_through_others(sources: list[Source]) -> None:
    """Lazy imports count: a cycle is a cycle, whenever it is entered."""
    graph = {source.module: imported_modules(source, sources) for source in sources}
    assert cycles(graph) == []


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other: those that can reach themselves, by reach."""
    reach = {name: _reachable(name, graph) for name in graph}
    found = {
        tuple(sorted(other for other in reach[name] if name in reach.get(other, ())))
        for name in graph
        if name in reach[name]
    }
    return [list(group) for group in sorted(found)]


def _reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    open_ = [start]
    while open_:
        for target in graph.get(open_.pop(), ()):
            if target not in found:
                found.add(target)
                open_.append(target)
    return found
