"""A small API without a socket: one operation for each form of request."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.app.application import Holdfast
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import OutcomeUnknown, QueueFull, Unsupported
from holdfast.server.access.admission import ApiCall
from holdfast.server.application import AsgiApplication
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState
from tests.server.asgi_client import AsgiClient


class Query(Struct):
    limit: Annotated[int, Meta(ge=1, le=9)] = 5
    states: list[str] = []
    ratio: float | None = None
    dry: bool = False


class Body(Struct, forbid_unknown_fields=True):
    count: int
    note: str = ""


class Loose(Struct, forbid_unknown_fields=True):
    note: str = "nothing"


@operation("GET", "/v1/things/{name}", needs=Scope.OPERATE)
async def thing(call: ApiCall, name: str, query: Query) -> dict[str, Any]:
    return {"name": name, "query": query}


@operation("GET", "/v1/things/{name}/{number}", needs=Scope.OPERATE)
async def numbered(
    call: ApiCall, name: Annotated[str, Meta(max_length=3)], number: Annotated[int, Meta(ge=0)]
) -> list[Any]:
    return [name, number]


@operation("POST", "/v1/things/count", needs=Scope.OPERATE, status=201, repeatable=True)
async def count(call: ApiCall, body: Body) -> Body:
    return body


@operation("POST", "/v1/loose", needs=Scope.OPERATE, repeatable=True)
async def loose(call: ApiCall, body: Loose) -> Loose:
    return body


@operation("DELETE", "/v1/things/{name}", needs=Scope.OPERATE, status=204)
async def remove(call: ApiCall, name: str) -> None:
    match name:
        case "full":
            raise QueueFull("it is full")
        case "unsure":
            raise OutcomeUnknown("who knows")
        case "cannot":
            raise Unsupported("memory", "miracles")
        case "broken":
            raise ZeroDivisionError("the password is hunter2")
        case _:
            pass


@operation("GET", "/v1/text", needs=None)
async def text(call: ApiCall) -> Annotated[bytes, "text/plain"]:
    return b"as it is"


SAMPLE_OPERATIONS = (thing, numbered, count, loose, remove, text)


def serve(*operations: Operation, **settings: Any) -> tuple[AsgiClient, ServerState]:
    app = Holdfast(engine=MemoryEngine())
    server = ServerState(app=app, settings=ServerSettings(**settings))
    return AsgiClient(AsgiApplication(server, operations or SAMPLE_OPERATIONS)), server
