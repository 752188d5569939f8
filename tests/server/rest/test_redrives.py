"""Redrives over REST, carried out by upkeep."""

from typing import Any

import pytest

from holdfast.core.model import State
from holdfast.upkeep import Redriver
from tests.server.rest.test_dead_letters import die, state
from tests.server.rest_client import RestClient

REDRIVES = "/v1/redrives"


async def step(rest: RestClient) -> None:
    """As upkeep does, wherever it runs."""
    await Redriver(rest.store, rest.clock.wall_ms).once()


async def test_a_redrive_is_started_finished_and_shown(rest: RestClient) -> None:
    await die(rest, "a", "b", task="mail:send", payload={"n": 1})
    await die(rest, "c")
    body = {"filter": {"task": "mail:send"}, "rate": "100/s", "edit": {"n": 2}, "delay": 5}
    started = await rest.post(REDRIVES, body, status=201)
    redrive = started["redrive"]
    assert (started["found"], started["more"], started["capped"]) == (2, False, 0)
    assert (redrive["state"], redrive["total"], redrive["by"]) == ("running", 2, "local")
    assert (redrive["rate"], redrive["edit"], redrive["delay"]) == (
        "100/s burst 100",
        {"n": 2},
        "5s",
    )
    assert redrive["filter"] == {"task": "mail:send"}
    for _ in range(3):
        await step(rest)
    shown = await rest.get(f"{REDRIVES}/{redrive['id']}")
    assert (shown["state"], shown["retried"], shown["left"]) == ("finished", 2, 0)
    assert await rest.get(REDRIVES) == {"redrives": [shown]}
    assert (await rest.job("a")).payload == b'{"n":2}'
    assert await state(rest, "c") is State.DEAD


async def test_a_dry_run_starts_nothing(rest: RestClient) -> None:
    await die(rest, "a")
    looked = await rest.post(REDRIVES, {"all": True, "dry_run": True}, status=201)
    assert looked == {"found": 1, "more": False, "capped": 0, "redrive": None}
    assert await rest.get(REDRIVES) == {"redrives": []}


async def test_a_canary_goes_first(rest: RestClient) -> None:
    await die(rest, "a", "b", "c")
    started = await rest.post(REDRIVES, {"all": True, "canary": True}, status=201)
    assert started["redrive"]["canaries"] == 1
    for _ in range(3):
        await step(rest)
    shown = await rest.get(f"{REDRIVES}/{started['redrive']['id']}")
    assert (shown["state"], shown["retried"]) == ("canary", 1)


async def test_a_cancelled_redrive_stops(rest: RestClient) -> None:
    await die(rest, "a")
    body = {"all": True, "rate": "1/h"}
    id_ = (await rest.post(REDRIVES, body, status=201))["redrive"]["id"]
    told = await rest.post(f"{REDRIVES}/{id_}/cancel")
    assert (told["state"], told["text"]) == ("cancelled", "by local")
    await step(rest)
    assert await state(rest, "a") is State.DEAD
    assert await rest.post(f"{REDRIVES}/{id_}/cancel") == told


async def test_unknown_names_are_not_found(rest: RestClient) -> None:
    assert await rest.refused("GET", f"{REDRIVES}/none") == (404, "not_found")
    assert await rest.refused("POST", f"{REDRIVES}/none/cancel") == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({}, (422, "usage")),
        ({"all": True, "filter": {"queue": "default"}}, (422, "usage")),
        ({"all": True, "rate": "fast"}, (400, "invalid_request")),
        ({"all": True, "rate": "0/s"}, (422, "usage")),
        ({"all": True, "canary_wait": 0}, (422, "usage")),
        ({"all": True, "max_redrives": 0}, (400, "invalid_request")),
        ({"all": True, "speed": 1}, (400, "invalid_request")),
    ],
)
async def test_invalid_redrives_are_refused(
    rest: RestClient, body: dict[str, Any], refusal: tuple[int, str]
) -> None:
    assert await rest.refused("POST", REDRIVES, body) == refusal
    assert await rest.get(REDRIVES) == {"redrives": []}
