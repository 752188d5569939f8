"""The parts of uvicorn that the server replaces."""

import time
from email.utils import formatdate

import pytest

from holdfast.app.application import Holdfast
from holdfast.engines.memory import MemoryEngine
from holdfast.server.application import AsgiApplication
from holdfast.server.http.uvicorn_server import UvicornServer
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState


async def test_the_date_is_right_however_long_a_tick_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ServerState(app=Holdfast(engine=MemoryEngine()), settings=ServerSettings(auth=False))
    web = UvicornServer(state, AsgiApplication(state))
    web.config.load()
    for tick, now_s in enumerate((1_000.0, 1_000.9, 1_003.5, 1_003.6, 1_009.0)):
        monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
        assert await web.on_tick(tick) is False
        date = formatdate(now_s, usegmt=True).encode()
        assert (b"date", date) in web.server_state.default_headers
    web.should_exit = True
    assert await web.on_tick(5) is True
