"""Circuit breakers over REST."""

import msgspec

from holdfast.core.breaker import KIND, Breaker, BreakerRecord
from holdfast.core.model import Record
from tests.server.rest_client import RestClient

BREAKERS = "/v1/breakers"


async def put(rest: RestClient, *names: str) -> None:
    value = msgspec.json.encode(BreakerRecord(policy=Breaker(), streak=1))
    await rest.store.save([Record(kind=KIND, key=name, value=value) for name in names])


async def test_breakers_are_listed_and_shown(rest: RestClient) -> None:
    await put(rest, "task:mail/send", "host:example.org:443")
    listed = (await rest.get(BREAKERS))["breakers"]
    assert [each["name"] for each in listed] == ["host:example.org:443", "task:mail/send"]
    assert (listed[0]["state"], listed[0]["failures"]) == ("closed", 1)
    shown = await rest.get(f"{BREAKERS}/task:mail%2Fsend")
    assert shown["name"] == "task:mail/send"
    assert (await rest.get(f"{BREAKERS}/example.org:443"))["name"] == "host:example.org:443"


async def test_a_breaker_opened_by_hand_stays_open(rest: RestClient) -> None:
    await put(rest, "task:mail")
    opened = await rest.post(f"{BREAKERS}/mail/open")
    assert opened == {"name": "task:mail", "state": "open"}
    shown = await rest.get(f"{BREAKERS}/task:mail")
    assert (shown["state"], shown["opened_by"], shown["probe_in_ms"]) == ("open", "local", None)
    closed = await rest.post(f"{BREAKERS}/task:mail/close")
    assert closed == {"name": "task:mail", "state": "closed"}
    shown = await rest.get(f"{BREAKERS}/task:mail")
    assert (shown["state"], shown["failures"], shown["opened_by"]) == ("closed", 0, "")


async def test_a_closed_breaker_of_a_host_is_removed(rest: RestClient) -> None:
    await put(rest, "host:example.org:443")
    closed = await rest.post(f"{BREAKERS}/host:example.org:443/close")
    assert closed["state"] == "closed"
    assert await rest.get(BREAKERS) == {"breakers": []}


async def test_unknown_names_are_not_found(rest: RestClient) -> None:
    for method, path in (("GET", ""), ("POST", "/open"), ("POST", "/close")):
        refused = await rest.refused(method, f"{BREAKERS}/task:none{path}")
        assert refused == (404, "not_found")
