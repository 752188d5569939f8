"""An application whose worker runs beside a FastAPI server."""

import os

from fastapi import FastAPI

from holdfast import Holdfast
from holdfast.integrations.fastapi import OpenedApp, lifespan

app = Holdfast(os.environ.get("HOLDFAST_URL", "memory:"))
api = FastAPI(lifespan=lifespan(app, worker=True))


@app.task
def double(number: int) -> int:
    return number * 2


@api.post("/double/{number}")
async def ask(number: int, jobs: OpenedApp) -> int:
    assert jobs is app
    handle = await double.aenqueue(number)
    return await handle.aresult(timeout="60s")
