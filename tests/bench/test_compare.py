"""The comparison with other queues: its page fits the recorded data, and its harness works."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bench.compare import experiments, page
from bench.compare.experiments import EXPERIMENTS, QUICK, suitable
from bench.compare.main import run
from bench.compare.page import Observation
from bench.compare.products import HOLDFAST, PRODUCTS
from bench.compare.questions import ASPECTS, QUESTIONS
from bench.report import RECORD_END, RECORD_START

SAMPLE = Observation(
    product="holdfast", question="flow.1", answer=True, text="seen", version="1", date="2026-11-18"
)


def test_the_page_has_the_tables_of_the_recorded_data() -> None:
    text = page.PAGE.read_text()
    for name, table in page.tables(page.read_answers(), page.read_observed()).items():
        start, end = RECORD_START.format(name=name), RECORD_END.format(name=name)
        found = text.partition(start)[2].partition(end)[0]
        assert found.strip() == table.strip(), f"{name}: run ./hf bench compare --record"


def test_no_observation_contradicts_its_answer() -> None:
    assert page.contradictions(page.read_answers(), page.read_observed()) == []


def test_a_contradiction_is_named() -> None:
    wrong = msgspec.structs.replace(SAMPLE, answer=False, text="out of order")
    [line] = page.contradictions(page.read_answers(), [SAMPLE, wrong])
    assert line == "holdfast, flow.1: y in answers.toml, but out of order"


def test_every_product_answers_every_question() -> None:
    answers = page.read_answers()
    assert list(answers) == [product.name for product in PRODUCTS]
    assert len(ASPECTS) == 15
    assert len(QUESTIONS) == 45
    for name, given in answers.items():
        assert list(given) == [aspect.key for aspect in ASPECTS], name
        for aspect, answer in given.items():
            assert re.fullmatch("[yn]{3}", answer.answers), f"{name}, {aspect}"
            assert re.fullmatch(r"[^|\n]+\.", answer.says), f"{name}, {aspect}"
            local = page.PAGE.parent / answer.source.partition("#")[0]
            assert name != HOLDFAST.name or local.exists(), answer.source


def test_the_page_says_why_where_holdfast_is_behind() -> None:
    behind = page.behind(page.read_answers())
    assert [aspect.key for aspect in ASPECTS if aspect.behind] == [each.key for each in behind]


def test_every_experiment_was_recorded_for_its_products() -> None:
    recorded = {(each.product, each.question) for each in page.read_observed()}
    wanted = {
        (product.name, question)
        for name, experiment in EXPERIMENTS.items()
        for product in suitable(name)
        for question in experiment.questions
    }
    assert recorded == wanted


@pytest.mark.parametrize("name", ["fan-in", "refused", "tested"])
def test_experiments_with_holdfast_find_what_was_recorded(name: str) -> None:
    found, notes = run([(name, HOLDFAST)], QUICK)
    assert notes == []
    assert tuple(each.question for each in found) == EXPERIMENTS[name].questions
    recorded = {each.question: each for each in page.read_observed() if each.product == "holdfast"}
    for each in found:
        assert (each.answer, each.text) == (
            recorded[each.question].answer,
            recorded[each.question].text,
        )


def test_a_failed_experiment_is_a_note() -> None:
    river = next(product for product in PRODUCTS if product.name == "river")
    found, notes = run([("refused", replace(river, runs="holdfast"))], QUICK)
    assert found == []
    assert notes == ["refused, River: failed: River cannot be installed here"]


def test_new_observations_replace_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "OBSERVED", tmp_path / "observed.json")
    first = msgspec.structs.replace(SAMPLE, question="first-run.1", product="rq", answer=False)
    page.keep([SAMPLE, first])
    newer = msgspec.structs.replace(SAMPLE, text="seen again")
    assert page.keep([newer]) == [first, newer]
    assert page.read_observed() == [first, newer]


def test_jobs_that_only_touch_do_not_overlap() -> None:
    spans = [("a", 1.0, 2.0), ("b", 2.0, 3.0), ("c", 2.5, 4.0)]
    assert experiments.overlap(spans[:2]) == 1
    assert experiments.overlap(spans) == 2
