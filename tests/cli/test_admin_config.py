"""Stored settings: their values, precedence and effect."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.app.application import Holdfast
from holdfast.cli.output import Exit
from holdfast.cli.workers import WorkerFlags
from holdfast.config import SETTINGS, Settings, queue_weights
from holdfast.core.backoff import Backoff
from holdfast.core.bounds import SECOND_MS
from holdfast.core.model import Overrides, Record
from holdfast.engines.base import Engine, Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import ConfigError, EngineUnavailable
from holdfast.ops import settings
from tests.cli import seed
from tests.cli.program import Cli
from tests.cli.test_enqueue import job_of

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
SAMPLES = {
    "number": "2",
    "decimal": "1",
    "duration": "5s",
    "switch": "no",
    "queues": "a:2,b",
    "level": "off",
    "levels": "5,a:off,b:7",
    "ages": "1m, a:2h",
    "region": "eu-west-1",
    "keys": "password,*_token",
}


def test_a_setting_is_stored_read_and_removed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    seed.begin()
    assert cli("config", "get", "max-retries").out == "3\n"
    assert (
        cli("config", "set", "max-retries", "7").out
        == "max-retries is 7 for jobs enqueued from now on\n"
    )
    assert cli("config", "get", "max_retries").out == "7\n"
    assert cli("config", "get", "max-retries", "--json").json == {
        "name": "max-retries",
        "value": "7",
        "source": "stored",
        "default": "3",
        "variable": "HOLDFAST_MAX_RETRIES",
        "used_by": "enqueue",
        "does": "Retries of a job after its first attempt.",
    }
    other = ("--url", "sqlite:///other.db")
    assert cli("queue", "create", "q", *other).code == 0
    assert cli("config", "get", "max-retries", *other).out == "3\n"
    monkeypatch.setenv("HOLDFAST_MAX_RETRIES", "1")
    ran = cli("config", "set", "max-retries", "8")
    assert ran.out == "max-retries is 8 for jobs enqueued from now on\n"
    assert ran.err == (
        "in this environment HOLDFAST_MAX_RETRIES overrides the stored value with 1\n"
    )
    listed = {each["name"]: each for each in cli("config", "list", "--json").json}
    assert list(listed) == list(SETTINGS)
    assert listed["max-retries"]["source"] == "environment"
    monkeypatch.delenv("HOLDFAST_MAX_RETRIES")
    assert cli("config", "unset", "max-retries").out == "max-retries is 3 by default\n"
    assert cli("config", "unset", "max-retries").code == 0, "twice is the same as once"
    text = cli("config", "list").out
    assert "job-timeout" in text
    assert "default" in text


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["get", "colour"], Exit.NOT_FOUND, "unknown setting 'colour': there are max-retries,"),
        (["set", "colour", "red"], Exit.NOT_FOUND, "unknown setting 'colour'"),
        (
            ["set", "max-retries", "many"],
            Exit.USAGE,
            "max-retries 'many' is not valid: expected a whole number",
        ),
        (["set", "max-retries", "1.5"], Exit.USAGE, "whole number"),
        (
            ["set", "max-retries", "-1"],
            Exit.USAGE,
            "is not valid: expected a whole number, 0 to 999999",
        ),
        (["set", "max-retrys", "1"], Exit.NOT_FOUND, "did you mean max-retries?"),
        (["set", "lease", "1ms"], Exit.USAGE, "lease '1ms' is out of range: expected 10ms to 1w"),
        (["set", "job-timeout", "soon"], Exit.USAGE, 'job-timeout "soon": expected a duration'),
        (
            ["set", "backoff-base", "0.5"],
            Exit.USAGE,
            "backoff-base '0.5' is out of range: expected 1 to 100",
        ),
        (["set", "backoff-jitter", "2"], Exit.USAGE, "is out of range: expected 0 to 1"),
        (["set", "worker-shell", "perhaps"], Exit.USAGE, "is not valid: use yes or no"),
        (["set", "worker-queues", "a:b"], Exit.USAGE, "'a:b'"),
        (["set", "worker-queues", ""], Exit.USAGE, "no queue is given"),
    ],
)
def test_invalid_settings_are_refused(cli: Cli, line: list[str], code: Exit, says: str) -> None:
    ran = cli("config", *line)
    assert (ran.code, ran.out) == (code, "")
    assert says in ran.err


def test_stored_settings_are_defaults_of_jobs(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "max-retries": "1",
        "max-crashes": "5",
        "job-timeout": "90s",
        "lease": "1m",
        "backoff-base": "3",
        "backoff-max": "1h",
        "backoff-jitter": "0",
    }.items():
        assert cli("config", "set", name, value).code == 0
    backoff = Backoff(first_ms=3_000, factor=3.0, cap_ms=3_600_000, jitter=0.0)
    stored = Overrides(
        lease_ms=60_000, timeout_ms=90_000, max_attempts=2, max_crashes=5, backoff=backoff
    )
    assert job_of(cli("enqueue", "--", "x").out.strip()).overrides == stored
    monkeypatch.setenv("HOLDFAST_MAX_RETRIES", "4")
    assert job_of(cli("enqueue", "--", "x").out.strip()).overrides.max_attempts == 5
    monkeypatch.setenv("HOLDFAST_ENQUEUE_MAX_RETRIES", "5")
    assert job_of(cli("enqueue", "--", "x").out.strip()).overrides.max_attempts == 6
    line = ["--max-retries", "6", "--timeout", "1s", "--", "x"]
    overrides = job_of(cli("enqueue", *line).out.strip()).overrides
    assert (overrides.max_attempts, overrides.timeout_ms) == (7, SECOND_MS)
    job = job_of(cli("enqueue", '{"command": "x", "max_attempts": 9}').out.strip())
    assert job.overrides.max_attempts == 9
    monkeypatch.setenv("HOLDFAST_MAX_RETRIES", "many")
    ran = cli("enqueue", "--", "x")
    assert (ran.code, "HOLDFAST_MAX_RETRIES: max-retries 'many'" in ran.err) == (2, True)


def test_backoff_delays_are_powers_of_the_base() -> None:
    exact = {"backoff-base": "2", "backoff-max": "10s", "backoff-jitter": "0"}
    backoff = Settings(exact, {}).backoff()
    assert backoff is not None
    assert [backoff.delay_ms(run, 0.5) for run in (1, 2, 3, 4)] == [2000, 4000, 8000, 10_000]
    assert Settings({}, {}).backoff() is None


def test_the_settings_show_the_default_backoff() -> None:
    shown = {name: SETTINGS[name].default for name in SETTINGS if name.startswith("backoff-")}
    assert Settings(shown, {}).backoff() == Backoff()


@pytest.mark.parametrize("name", ["backoff-base", "backoff-max", "backoff-jitter"])
def test_one_backoff_setting_leaves_the_others_alone(name: str) -> None:
    assert Settings({name: SETTINGS[name].default}, {}).backoff() == Backoff()


@pytest.mark.parametrize(
    "url", ["sqlite:///a.db", "postgresql://host/a", "http://host:7433", "partitioned:a.toml"]
)
def test_one_setting_decides_on_shells_whatever_the_engine(url: str) -> None:
    def shell(stored: dict[str, str], flag: bool | None = None) -> bool:
        return WorkerFlags(shell=flag).options(url, Settings(stored, {}), None).shell

    assert shell({})
    assert not shell({"worker-shell": "no"})
    assert shell({"worker-shell": "no"}, flag=True)
    assert not shell({}, flag=False)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_a_variable_and_a_valid_default(name: str) -> None:
    setting = SETTINGS[name]
    if setting.default:
        setting.read(setting.default)
    sample = {"worker-output-max": "4096"}.get(name, SAMPLES[setting.type])
    held = Settings({name: setting.default}, {setting.variable: sample})
    assert held.shown(name).source == "environment"
    assert held.value(name) == setting.read(sample)
    assert Settings({name: sample}, {setting.variable: ""}).shown(name).source == "stored"
    assert Settings({}, {}).value(name) is None


def test_queues_by_weight() -> None:
    assert queue_weights(" mail:10, default ") == {"mail": 10, "default": 1}
    for text in ("a,a", "a:0", "a:-1", "a b", ":3", ","):
        with pytest.raises(ConfigError):
            queue_weights(text)


def test_the_documentation_has_the_table() -> None:
    rows = [
        f"| `{each.name}` | {each.default or '–'} | {each.does} | {each.feeds} |"
        for each in SETTINGS.values()
    ]
    table = "\n".join(["| Setting | Default | Meaning | Used by |", "|---|---|---|---|", *rows])
    assert f"<!-- settings -->\n{table}\n<!-- /settings -->" in DOCS.read_text()


Answer = TypeVar("Answer")


def on_memory(call: Callable[[Engine], Awaitable[Answer]]) -> Answer:
    async def run() -> Answer:
        async with Holdfast(engine=MemoryEngine()) as app:
            return await call(app.engine)

    return asyncio.run(run())


def test_concurrent_changes_of_a_setting_both_finish() -> None:
    async def race(engine: Engine) -> str:
        values = [str(number) for number in range(8)]
        await asyncio.gather(
            *(settings.save_setting(engine, "max-retries", value) for value in values)
        )
        return (await settings.read_settings(engine, {})).shown("max-retries").text

    assert on_memory(race) in "01234567"


def test_a_setting_that_changes_all_the_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def store(engine: Engine) -> None:
        async def stale(records: list[Record]) -> list[Saved]:
            return [Saved.STALE for _ in records]

        monkeypatch.setattr(engine, "save", stale)
        with pytest.raises(EngineUnavailable, match="max-retries"):
            await settings.save_setting(engine, "max-retries", "1")

    on_memory(store)
