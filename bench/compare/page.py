"""The tables of docs/comparison.md, from the answers and the recorded observations."""

from __future__ import annotations

import tomllib
from pathlib import Path
from urllib.parse import urljoin

import msgspec

from bench.compare.products import HOLDFAST, PRODUCTS, Product
from bench.compare.questions import ASPECTS, QUESTIONS, Aspect
from bench.processes import ROOT

PAGE = ROOT / "docs" / "comparison.md"
ANSWERS = Path(__file__).with_name("answers.toml")
OBSERVED = Path(__file__).with_name("observed.json")


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`answers` has y or n for each of the three questions of an aspect."""

    answers: str
    says: str
    source: str

    @property
    def score(self) -> int:
        return self.answers.count("y")


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an experiment with a product, about one question."""

    product: str
    question: str
    answer: bool
    text: str
    version: str
    date: str


Answers = dict[str, dict[str, Answer]]


def read_answers() -> Answers:
    """The answers by product and aspect."""
    text = tomllib.loads(ANSWERS.read_text())
    return msgspec.convert(text, Answers)


def read_observed() -> list[Observation]:
    if not OBSERVED.exists():
        return []
    return msgspec.json.decode(OBSERVED.read_bytes(), type=list[Observation])


def keep(new: list[Observation]) -> list[Observation]:
    """Add observations to the recorded ones, in place of older ones, and store all of them."""
    merged = {(each.product, each.question): each for each in [*read_observed(), *new]}
    names = [product.name for product in PRODUCTS]
    order = list(QUESTIONS)
    kept = sorted(
        merged.values(), key=lambda each: (order.index(each.question), names.index(each.product))
    )
    OBSERVED.write_bytes(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")
    return kept


def contradictions(answers: Answers, observed: list[Observation]) -> list[str]:
    """A line for each observation that does not agree with its answer."""
    return [
        f"{each.product}, {each.question}: {_given(answers, each)} in answers.toml, but {each.text}"
        for each in observed
        if (_given(answers, each) == "y") is not each.answer
    ]


def behind(answers: Answers) -> list[Aspect]:
    """The aspects in which another product has a higher score than Holdfast."""
    return [
        aspect
        for aspect in ASPECTS
        if answers[HOLDFAST.name][aspect.key].score
        < max(answers[product.name][aspect.key].score for product in PRODUCTS)
    ]


def tables(answers: Answers, observed: list[Observation]) -> dict[str, str]:
    """The texts between the markers of the page, by name."""
    return {
        "scores": _scores(answers),
        "behind": _behind(answers),
        "evidence": _evidence(answers, observed),
    }


def _given(answers: Answers, each: Observation) -> str:
    aspect, _, number = each.question.rpartition(".")
    return answers[each.product][aspect].answers[int(number) - 1]


def _scores(answers: Answers) -> str:
    lines = ["| aspect | " + " | ".join(product.title for product in PRODUCTS) + " |"]
    lines += ["|---|" + "--:|" * len(PRODUCTS)]
    for aspect in ASPECTS:
        scores = [answers[product.name][aspect.key].score for product in PRODUCTS]
        cells = [f"**{score}**" if score == max(scores) else str(score) for score in scores]
        lines += [f"| [{aspect.title}](#{_anchor(aspect)}) | " + " | ".join(cells) + " |"]
    totals = [
        str(sum(each.score for each in answers[product.name].values())) for product in PRODUCTS
    ]
    return "\n".join([*lines, "| of 45 | " + " | ".join(totals) + " |"])


def _behind(answers: Answers) -> str:
    lines = []
    for aspect in behind(answers):
        scores = {product.title: answers[product.name][aspect.key].score for product in PRODUCTS}
        best = max(scores.values())
        first = [title for title, score in scores.items() if score == best]
        others = f"{_listed(first)} {'has' if len(first) == 1 else 'have'} {best}"
        ours = scores[HOLDFAST.title]
        lines += [f"- **{aspect.title}**, {ours} of 3; {others}. {aspect.behind}"]
    return "\n".join(lines)


def _evidence(answers: Answers, observed: list[Observation]) -> str:
    lines = [_versions(observed)]
    for aspect in ASPECTS:
        lines += ["", f"### {aspect.title}", ""]
        lines += [f"{number}. {text}" for number, text in enumerate(aspect.questions, 1)]
        lines += ["", "| product | 1 | 2 | 3 | score | in short | observed |"]
        lines += ["|---|---|---|---|--:|---|---|"]
        for product in PRODUCTS:
            lines += [_row(aspect, product, answers[product.name][aspect.key], observed)]
    return "\n".join(lines)


def _row(aspect: Aspect, product: Product, answer: Answer, observed: list[Observation]) -> str:
    found = {
        each.question: each
        for each in observed
        if each.product == product.name and each.question.rpartition(".")[0] == aspect.key
    }
    cells = []
    for number, letter in enumerate(answer.answers, 1):
        word = "yes" if letter == "y" else "no"
        cells += [f"**{word}**" if f"{aspect.key}.{number}" in found else word]
    texts = list(dict.fromkeys(each.text.replace("|", r"\|") for each in found.values()))
    link = f"[{product.title}]({_source(product, answer)})"
    row = [link, *cells, str(answer.score), answer.says, "; ".join(texts)]
    return "| " + " | ".join(row) + " |"


def _versions(observed: list[Observation]) -> str:
    """Which versions the experiments used, and when they were run."""
    versions = {each.product: each.version for each in observed}
    dates = sorted({each.date for each in observed})
    named = [
        f"{product.title} {versions[product.name]}"
        for product in PRODUCTS
        if product.name in versions
    ]
    span = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "never"
    return f"Experiments of {span}: {', '.join(named)}."


def _source(product: Product, answer: Answer) -> str:
    if answer.source.startswith("https://") or product is HOLDFAST:
        return answer.source
    return urljoin(product.docs, answer.source)


def _listed(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _anchor(aspect: Aspect) -> str:
    return aspect.title.lower().replace(" ", "-")
