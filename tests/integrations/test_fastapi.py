"""Holdfast in a FastAPI application: its lifespan, its dependency, and a worker beside it."""

import importlib
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from holdfast import BlockingHoldfast, Holdfast
from holdfast.integrations.fastapi import OpenedApp, lifespan


def test_a_request_enqueues_on_the_loop_of_the_server() -> None:
    app = Holdfast("memory:")

    @app.task(name="double")
    def double(number: int) -> int:
        return number * 2

    api = FastAPI(lifespan=lifespan(app))

    @api.post("/jobs/{number}")
    async def enqueue(number: int, jobs: OpenedApp) -> dict[str, str]:
        assert jobs is app
        # A blocking call is refused on the loop that the engine is open on.
        with pytest.raises(Exception, match="would block its own event loop"):
            double.enqueue(number)
        job = await app.get((await double.aenqueue(number)).id)
        assert job is not None
        return {"payload": job.payload.decode()}

    with TestClient(api) as client:
        assert client.post("/jobs/4").json() == {"payload": '{"number":4}'}
        assert app.home.used
    assert not app.home.used


def test_a_worker_runs_beside_the_server_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/jobs.db")
    module = importlib.import_module("tests.integrations.fastapi_app")
    with TestClient(module.api) as client:
        assert client.post("/double/4").json() == 8
    with BlockingHoldfast(f"sqlite:///{tmp_path}/jobs.db") as app:
        assert app.workers.all() == []
