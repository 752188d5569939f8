"""Kills clients of RabbitMQ, a ledger, gates and handlers, at a small size. Any size, and kills of
RabbitMQ: `./hf torture rabbitmq`

It runs in a separate process, because it forks.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from holdfast.conformance.checker import check
from holdfast.conformance.history import read_journals
from holdfast.conformance.rabbitmq_server import RabbitNode
from holdfast.core.model import Job, Reason, State
from holdfast.engines.base import Engine
from holdfast.engines.brokered import BrokeredEngine
from holdfast.engines.registry import open_broker
from holdfast.engines.sqlite import SQLiteEngine
from tests.crash.torture.test_engines import run
from torture import expiry_race
from torture.amqp_proxy import KINDS, FaultDice, Frames, faults_at
from torture.expiry_race import ExpiryRace
from torture.fault_injection import journal_in
from torture.gate_flow import SinkMessage, judge_gates

# A start of RabbitMQ takes some seconds of a core. Both parts use the broker of this test run, and
# the proxy cuts the connections to it. tests/crash/chaos kills a broker and starts it again, and
# `./hf torture rabbitmq` does so 20 times.
KILLS = 2
SMALL = {
    "engine": "--engine sqlite --processes 2 --seconds 1.5 --fault-every 0.15",
    "gates": "--processes 3 --server-kills 1 --seconds 2 --fault-every 0.2",
}


@pytest.mark.torture
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", SMALL)
def test_nothing_is_lost_or_settled_twice(
    part: str, rabbit_node: RabbitNode, tmp_path: Path
) -> None:
    figures, shared = tmp_path / "figures.json", tmp_path / "node.json"
    shared.write_text(json.dumps(rabbit_node._asdict()))
    options = [*SMALL[part].split(), "--seed", str(a_seed()), "--json", str(figures)]
    options += ["--kills", str(KILLS), "--broker-kills", "0", "--node", str(shared)]
    result = run("torture", "rabbitmq", "--part", part, *options)
    print(result.stdout)
    assert result.returncode == 0, result.stderr + result.stdout
    [found] = json.loads(figures.read_text())
    assert (found["lost"], found["resurrected"], found["stale_settles"]) == (0, 0, 0)
    assert found["violations"] == 0
    assert found["jobs"] > 0
    assert (found["kills"], found["broker_kills"]) == (KILLS, 0)
    assert sum(found[f"proxy_{kind}"] for kind in KINDS) > 0
    if part == "gates":
        assert found["entered"] >= found["confirmed"] > 0
        assert found["published"] == found["entered"]


@pytest.mark.torture
@pytest.mark.timeout(120)
async def test_a_job_that_is_taken_when_it_expires_has_one_outcome(
    rabbit_node: RabbitNode, tmp_path: Path
) -> None:
    """The part `expiry`, which kills nothing, on the broker of this run."""
    rounds, seed, vhost = 50, a_seed(), f"race-{os.getpid()}"
    options = f"--part expiry --engine sqlite --rounds {rounds} --seed {seed}"
    print(f"./hf torture rabbitmq {options}")
    broker = rabbit_node.add_vhost(vhost)

    def make() -> Engine:
        return BrokeredEngine(SQLiteEngine(tmp_path / "jobs.db"), open_broker(broker))

    try:
        race = ExpiryRace(make, partial(journal_in, tmp_path), seed)
        result = await race.run(rounds)
    finally:
        rabbit_node.delete_vhost(vhost)
    assert result.wrong == []
    assert result.taken + result.expired == rounds
    assert check(read_journals(tmp_path)).clean


def a_seed() -> int:
    given = os.environ.get("HOLDFAST_SEED")
    return SystemRandom().randrange(1_000_000) if given is None else int(given)


LINES: list[dict[str, Any]] = [
    {"what": "try", "id": "a", "body": "a"},
    {"what": "confirmed", "id": "a", "body": "a"},
    {"what": "try", "id": "b", "body": "b"},
    {"what": "try", "id": None, "body": "c"},
    {"what": "confirmed", "id": None, "body": "c"},
]
JOBS = {
    id_: {"queue": queue, "payload": body}
    for id_, queue, body in (
        ("gate:in:a", "in", b"a"),
        ("gate:in:a.out", "out", b"a"),
        ("c1", "in", b"c"),
        ("c2", "in", b"c"),
        ("c1.out", "out", b"c"),
        ("c2.out", "out", b"c"),
    )
}
SINK = [("gate:in:a.out", "a"), ("gate:in:a.out", "a"), ("c1.out", "c"), ("c2.out", "c")]


def test_duplicates_of_messages_without_an_id_and_of_the_outlet_are_right() -> None:
    counts, wrong = judge_gates(LINES, a_store(), a_sink())
    assert wrong == []
    assert counts == {"confirmed": 2, "entered": 3, "published": 3, "published_again": 1}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"without": ("gate:in:a", "gate:in:a.out")}, "confirmed message a is no job"),
        ({"also": {"other": {"queue": "in", "payload": b"a"}}}, "message a is 2 jobs"),
        ({"also": {"other": {"queue": "in", "payload": b"x"}}}, "job for x, which no producer"),
        ({"also": {"c1": {**JOBS["c1"], "state": State.DEAD}}}, "job c1 is dead"),
        ({"without": ("c1.out",)}, "job c1 was completed without its follow-up"),
        ({"unpublished": "c1.out"}, "job c1.out of the outlet is no message"),
        ({"spoilt": "c1.out"}, "message c1.out is not its job"),
    ],
)
def test_faults_of_gates_are_found(change: dict[str, Any], expected: str) -> None:
    store = a_store(without=change.get("without", ()), also=change.get("also", {}))
    sink = a_sink(unpublished=change.get("unpublished"), spoilt=change.get("spoilt"))
    _, wrong = judge_gates(LINES, store, sink)
    assert any(text.startswith(expected) for text in wrong), wrong


def a_store(
    without: tuple[str, ...] = (), also: dict[str, dict[str, Any]] | None = None
) -> list[Job]:
    kept = {id_: fields for id_, fields in (JOBS | (also or {})).items() if id_ not in without}
    return [a_job(id_, **{"state": State.DONE, **fields}) for id_, fields in kept.items()]


def a_sink(unpublished: str | None = None, spoilt: str | None = None) -> list[SinkMessage]:
    return [
        SinkMessage(id_, "spoilt" if id_ == spoilt else body)
        for id_, body in SINK
        if id_ != unpublished
    ]


def a_job(id: str, **fields: Any) -> Job:
    defaults = {"task": "torture", "queue": "worker.ann", "payload": b"", "state": State.DONE}
    return Job(id=id, **{**defaults, **fields})


def test_every_wrong_outcome_of_a_race_is_found() -> None:
    done = a_job("j", state=State.DONE, attempt=1)
    waiting = a_job("j", state=State.WAITING)
    cancelled = a_job("j", state=State.DEAD, reason=Reason.EXPLICIT)
    assert expiry_race.judge(done, is_taken=True) == ""
    assert "no worker completed it" in expiry_race.judge(done, is_taken=False)
    for job in (waiting, cancelled):
        assert expiry_race.judge(job, is_taken=False)
        assert expiry_race.judge(job, is_taken=True)


def test_the_proxy_finds_frames_in_any_pieces() -> None:
    deliver, confirm = method(60, 60, b"delivery"), method(60, 80, b"confirm")
    stream = b"AMQP\x00\x00\x09\x01" + deliver + confirm
    for size in (1, 3, len(stream)):
        frames = Frames()
        parts = [stream[at : at + size] for at in range(0, len(stream), size)]
        found = [frame for part in parts for frame in frames.feed(part)]
        assert found == [stream[:8], deliver, confirm]


def test_faults_happen_at_the_frames_that_they_are_about() -> None:
    ack = method(60, 80, b"")
    assert "confirm" in faults_at(ack, from_broker=True)
    assert "ack" in faults_at(ack, from_broker=False)
    assert "delivery" in faults_at(method(60, 60, b""), from_broker=True)
    for frame in (method(10, 40, b""), b"\x03" + ack[1:], b"AMQP\x00\x00\x09\x01"):
        for from_broker in (False, True):
            assert faults_at(frame, from_broker=from_broker) == ("cut", "frame", "stall")


def test_nothing_happens_before_faults_are_armed() -> None:
    dice = FaultDice(seed=1, every_s=1.0)
    assert dice.strike(KINDS) is None
    assert not dice.counts


def method(class_id: int, method_id: int, arguments: bytes) -> bytes:
    payload = class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big") + arguments
    return b"\x01\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"
