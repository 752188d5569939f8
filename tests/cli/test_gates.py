"""`gate …`: add, list, show, pause and remove gates; `--broker`."""

import pytest

from holdfast.cli.flags import urls_of_brokers
from holdfast.errors import ConfigError, UsageError
from holdfast.ops.gates import GATE_RUNS, Gate, GateRun, Gates, GateState, url_of
from tests.cli import seed
from tests.cli.program import Cli

INLET = ("--broker", "main", "--queue", "default", "--source", "orders", "--task", "send")
OUTLET = ("--broker", "main", "--queue", "default", "--exchange", "news")


def stored(name: str = "in") -> Gate:
    found: Gate = seed.with_app(lambda app: Gates(app.engine).get(name))
    return found


def run_as(state: GateState, text: str = "", **counts: int) -> None:
    run = GateRun(gate="in", queue="default", state=state, text=text, counts=counts)
    seed.with_app(lambda app: GATE_RUNS.create(app.engine, "in/p", run))


def test_an_empty_list_says_how_to_add_a_gate(cli: Cli) -> None:
    seed.begin()
    assert cli("gate", "list").err == 'there are no gates: add one with "holdfast gate add"\n'


def test_an_inlet_with_every_field(cli: Cli) -> None:
    more = ("--tenant", "{header.t|none}", "--group", "{routing_key}", "--key", "{message_id}")
    ran = cli(
        *("gate", "add", "in", *INLET, *more),
        *("--content-type", "application/json", "--prefetch", "7"),
    )
    assert (ran.code, ran.out) == (0, "added inlet in\n")
    assert "HOLDFAST_BROKER_MAIN" in ran.err
    assert stored() == Gate(
        name="in",
        direction="inlet",
        broker="main",
        queue="default",
        source="orders",
        task="send",
        tenant="{header.t|none}",
        group="{routing_key}",
        key="{message_id}",
        content_type="application/json",
        prefetch=7,
    )


def test_an_outlet(cli: Cli) -> None:
    view = cli("gate", "add", "out", *OUTLET, "--routing-key", "{task}", "--json").json
    assert (view["direction"], view["exchange"], view["routing_key"]) == (
        "outlet",
        "news",
        "{task}",
    )
    assert stored("out").direction == "outlet"


def test_a_dead_letter_inlet(cli: Cli) -> None:
    view = cli("gate", "add", "in", *INLET, "--dead", "--json").json
    assert view["dead"] is True
    assert "exactly one dead letter" in view["notes"][0]
    assert stored().dead
    run_as(GateState.RUNNING, adopted=77)
    assert "77" in cli("gate", "list").out
    refused = cli("gate", "add", "out", *OUTLET, "--dead")
    assert (refused.code, "it has no dead" in refused.err) == (2, True)


def test_states_and_counts_are_shown(cli: Cli) -> None:
    cli("gate", "add", "in", *INLET)
    run_as(GateState.FAILING, "connection refused\x1b[2J", enqueued=1_234, rejected=5)
    listed = cli("gate", "list").out
    assert all(text in listed for text in ("main:orders", "failing", "1234", "refused\\x1b[2J"))
    shown = cli("gate", "show", "in").out
    assert "connection refused" in shown
    assert "at least one job" in shown
    assert "rejected      5" in shown
    assert "failing" in cli("status").out
    doctor = cli("doctor")
    assert "gate in is failing: connection refused" in doctor.out
    assert "gate show in" in doctor.out


def test_pause_resume_remove(cli: Cli) -> None:
    cli("gate", "add", "in", *INLET)
    assert cli("gate", "pause", "in").out == "paused gate in\n"
    assert stored().paused
    assert "paused" in cli("gate", "list").out
    assert "gate" not in {each["name"] for each in cli("doctor", "--json").json["findings"]}
    assert cli("gate", "resume", "in").out == "resumed gate in\n"
    assert cli("gate", "remove", "in", "--json").json["name"] == "in"
    for act in ("show", "pause", "resume", "remove"):
        ran = cli("gate", act, "in")
        assert (ran.code, 'gate "in" does not exist' in ran.err) == (3, True), ran


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (("--broker", "b", "--queue", "default"), "give --source for an inlet"),
        ((*INLET[2:], "--broker", "b=amqp://u:hunter2@h"), "takes only the name here"),
        ((*INLET, "--exchange", "x"), "it has no exchange"),
        ((*OUTLET, "--task", "x"), "it has no task"),
        ((*INLET[:-1], "{body}"), "unknown placeholder {body}"),
        ((*INLET, "--prefetch", "0"), "prefetch"),
    ],
)
def test_a_wrong_gate_is_refused(cli: Cli, line: tuple[str, ...], text: str) -> None:
    ran = cli("gate", "add", "in", *line)
    assert ran.code == 2, ran
    assert text in ran.err
    assert "hunter2" not in ran.err


def test_a_missing_queue_and_a_second_gate_are_refused(cli: Cli) -> None:
    missing = cli("gate", "add", "in", "--broker", "b", "--queue", "none", "--exchange", "x")
    assert "create it with" in missing.err
    cli("gate", "add", "in", *INLET)
    assert "exists already" in cli("gate", "add", "in", *OUTLET).err


def test_running_needs_a_broker(cli: Cli) -> None:
    cli("gate", "add", "in", *INLET)
    assert "no broker is given" in cli("gate", "run").err
    ran = cli("gate", "run", "in", "--broker", "other=amqp://user:hunter2@localhost")
    assert "HOLDFAST_BROKER_MAIN" in ran.err
    assert "hunter2" not in ran.err
    assert 'gate "none" does not exist' in cli("gate", "run", "none", "--broker", "b=amqp://h").err
    for line in (("worker", "start"), ("serve",)):
        ran = cli(*line, "--no-upkeep", "--broker", "b=amqp://h")
        assert "--broker needs upkeep" in ran.err


def test_urls_of_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_BROKER_EU_WEST", "amqp://eu")
    monkeypatch.setenv("HOLDFAST_BROKER_EMPTY", "")
    urls = urls_of_brokers(["main=amqp://h?x=1", "eu.west=amqp://flag"])
    assert url_of("main", urls) == "amqp://h?x=1"
    assert url_of("eu.west", urls) == "amqp://flag"
    assert url_of("eu-west", urls) == "amqp://eu"
    assert url_of("empty", urls) is None
    assert url_of("none", urls) is None


@pytest.mark.parametrize(
    "given",
    [["amqp://u:hunter2@h"], ["a b=amqp://u:hunter2@h"], ["=x:hunter2"], ["b=hunter2"], ["b"]],
)
def test_a_wrong_broker_is_refused_without_its_url(given: list[str]) -> None:
    with pytest.raises(ConfigError, match="expected NAME=URL") as raised:
        urls_of_brokers(given)
    assert "hunter2" not in str(raised.value)


def test_a_broker_is_given_once() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        urls_of_brokers(["b=x:1", "b=x:2"])
    with pytest.raises(UsageError):
        urls_of_brokers(["b=x:1"], upkeep=False)
