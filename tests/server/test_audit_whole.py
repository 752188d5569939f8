"""The audit has no gaps that a reader does not see, and no secrets."""

import logging

import pytest

from holdfast.core.model import Record
from holdfast.server.accesslog import AccessLog
from holdfast.server.audit import KIND
from holdfast.server.settings import ServerSettings
from tests.server.house import house

AUTH = ServerSettings(auth=True)


async def test_a_token_that_is_named_by_all_of_it_is_revoked_and_its_secret_is_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with house(AUTH) as at:
        admin = await at.token("admin")
        leaked = await at.token("produce", name="leaked")
        secret = leaked.split("_")[2]
        at.application = AccessLog(at.application)  # type: ignore[assignment]
        with caplog.at_level(logging.INFO, logger="holdfast.access"):
            reply = await at.ask("DELETE", f"/v1/tokens/{leaked}", token=admin)
        assert (reply.status, reply.json["name"]) == (200, "leaked")
        assert "/v1/tokens/hf_" in caplog.text
        assert secret not in caplog.text
        reply = await at.ask("GET", "/v1/audit", token=admin)
        [act] = reply.json["acts"]
        assert (act["what"], act["on"]) == ("token.revoke", leaked.split("_")[1])
        assert secret.encode() not in reply.body
        for record in await at.engine().load(KIND, limit=10):
            assert secret.encode() not in (record.value or b"")


async def test_what_cannot_be_read_does_not_hide_what_is_older() -> None:
    async with house(AUTH) as at:
        admin = await at.token("admin")
        for name in ("a", "b"):
            await at.ask("POST", "/v1/queues", {"name": name}, token=admin)
        newer = Record(kind=KIND, key=f"{'0' * 15}-{'0' * 8}", value=b"another version's")
        await at.engine().save([newer])
        seen: list[str] = []
        after = ""
        while True:
            reply = await at.ask("GET", f"/v1/audit?limit=1{after}", token=admin)
            seen += [act["on"] for act in reply.json["acts"]]
            if reply.json["after"] is None:
                break
            after = f"&after={reply.json['after']}"
        assert seen == ["b", "a"]
