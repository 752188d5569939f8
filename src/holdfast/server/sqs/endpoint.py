"""Answers Amazon SQS clients on `POST /` and on `GET|POST /{account}/{queue}`.

A request passes the same bounds, authentication, permissions and counters as any other operation;
its signature is verified once its body has arrived. The handlers of the actions are in `queues`,
`receive`, `messages` and `moves`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import unquote

from holdfast.app.application import Holdfast
from holdfast.errors import Forbidden, HoldfastError
from holdfast.notation.options import new_id
from holdfast.ops.service import Service
from holdfast.ops.sqs import ACCOUNT, REGION
from holdfast.ops.tokens import EVERYWHERE
from holdfast.server.access.admission import UnverifiedCaller
from holdfast.server.access.caller import LOCAL_CALLER, Scope
from holdfast.server.access.peers import OWN_USER
from holdfast.server.access.sigv4 import SignedRequest
from holdfast.server.http.endpoint import EndpointServices, RequestLifecycle, end_on_disconnect
from holdfast.server.http.pressure import RequestKind, Ticket
from holdfast.server.http.problems import (
    ClientDisconnected,
    TooLarge,
    WrongContent,
    error_headers,
)
from holdfast.server.http.request import AsgiScope, Headers, Receive, read_body
from holdfast.server.http.response import Reply
from holdfast.server.sqs import errors, json_protocol, messages, moves, query_protocol, queues
from holdfast.server.sqs.call import (
    DEFAULT_ACCOUNT,
    SqsCall,
    SqsState,
    account_of,
    namespace_of,
)
from holdfast.server.sqs.cloudwatch import CLOUDWATCH_HANDLERS
from holdfast.server.sqs.errors import SqsError, error_of
from holdfast.server.sqs.moves import MessageMover
from holdfast.server.sqs.queue_attributes import parse_arn
from holdfast.server.sqs.receive import message_state_of, receive_message
from holdfast.server.sqs.reconciler import QueueReconciler
from holdfast.server.sqs.shapes import (
    Action,
    Answer,
    CancelMessageMoveTaskRequest,
    GetQueueUrlRequest,
    ListMessageMoveTasksRequest,
    QueueRequest,
    Request,
    StartMessageMoveTaskRequest,
    queue_of,
)
from holdfast.server.state import ServerState

BODY_MAX: Final = 4 * 1024 * 1024
"""A legal message of 1 MiB can be three times as long in JSON."""

RECEIVE: Final = "ReceiveMessage"

_QUEUE_PATH: Final = re.compile(rb"/([0-9]{12})/([^/]{1,240})/?\Z")
_NAVIGATION: Final = (b"sec-fetch-mode", b"navigate")

Protocol = Literal["json", "query"]
Handler = Callable[[SqsCall, Any], Awaitable[Answer | None]]

HANDLERS: Final[dict[str, Handler]] = {
    "AddPermission": queues.add_permission,
    "CancelMessageMoveTask": moves.cancel_message_move_task,
    "ChangeMessageVisibility": messages.change_message_visibility,
    "ChangeMessageVisibilityBatch": messages.change_message_visibility_batch,
    "CreateQueue": queues.create_queue,
    "DeleteMessage": messages.delete_message,
    "DeleteMessageBatch": messages.delete_message_batch,
    "DeleteQueue": queues.delete_queue,
    "GetQueueAttributes": queues.get_queue_attributes,
    "GetQueueUrl": queues.get_queue_url,
    "ListDeadLetterSourceQueues": queues.list_dead_letter_source_queues,
    "ListMessageMoveTasks": moves.list_message_move_tasks,
    "ListQueueTags": queues.list_queue_tags,
    "ListQueues": queues.list_queues,
    "PurgeQueue": queues.purge_queue,
    "ReceiveMessage": receive_message,
    "RemovePermission": queues.remove_permission,
    "SendMessage": messages.send_message,
    "SendMessageBatch": messages.send_message_batch,
    "SetQueueAttributes": queues.set_queue_attributes,
    "StartMessageMoveTask": moves.start_message_move_task,
    "TagQueue": queues.tag_queue,
    "UntagQueue": queues.untag_queue,
}
"""The functions that carry out the actions."""

_READING: Final = frozenset(
    (
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "ListMessageMoveTasks",
        "ListQueueTags",
        "ListQueues",
        *CLOUDWATCH_HANDLERS,
    )
)
"""The actions that a read-only server carries out."""


class SqsEndpoint(RequestLifecycle):
    """Answers all actions. `arguments_of` tells whether a request is for it."""

    def __init__(self, server: ServerState, services: EndpointServices) -> None:
        super().__init__(services.pressure, RequestKind.REQUEST, has_body=True)
        self.state: SqsState = SqsState(server)
        self._server = server
        self._admission = services.admission
        self._meter = services.meter

    def services(self, namespace: str, app: Holdfast) -> tuple[Service, ...]:
        """The upkeep services of the queues of a namespace."""
        traits = app.engine.traits
        if not traits.records or not traits.inspect:
            return ()
        find_catalog = partial(self.state.catalog, namespace, app)
        reconciler = QueueReconciler(lambda: app.engine, find_catalog)
        return reconciler, MessageMover(lambda: app.engine)

    async def close(self) -> None:
        """End all long polls, and give back their leases."""
        for app in list(self._server.namespaces.apps.values()):
            await message_state_of(app).polls.close()

    def arguments_of(self, scope: AsgiScope, path: bytes) -> dict[str, Any] | None:
        """The arguments of a request of an SQS client; None for any other. A browser's navigation
        is never one, and none of its requests by GET is: a link or an image must not purge a
        queue."""
        method = scope["method"]
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if method not in ("GET", "POST") or _NAVIGATION in headers:
            return None
        if method == "GET" and _is_of_browser(headers):
            return None
        if path == b"/":
            protocol = _protocol_of(headers) if method == "POST" else None
            return None if protocol is None else {"protocol": protocol}
        found = _QUEUE_PATH.match(path)
        if found is None:
            return None
        account, name = found[1].decode(), unquote(found[2].decode("latin-1"))
        protocol = _protocol_of(headers) or "query"
        return {"protocol": protocol, "queue_url": f"/{account}/{name}"}

    async def _reply(
        self, scope: AsgiScope, receive: Receive, arguments: dict[str, Any], ticket: Ticket
    ) -> Reply:
        request_id = new_id()
        try:
            return await self._answer(scope, receive, arguments, ticket, request_id)
        except SqsError as error:
            return _error_reply(error, request_id, arguments["protocol"])
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 (becomes a reply)
            where = arguments.get("action", "a request of an SQS client")
            failure = self._error_of(error, ticket, where)
            reply = _error_reply(error_of(failure), request_id, arguments["protocol"])
            return reply._replace(headers=[*reply.headers, *error_headers(failure)])

    async def _answer(
        self,
        scope: AsgiScope,
        receive: Receive,
        arguments: dict[str, Any],
        ticket: Ticket,
        request_id: str,
    ) -> Reply:
        headers = Headers(scope["headers"])
        peer = scope.get("client")
        address = peer[0] if peer else None
        signed = SignedRequest(
            method=scope["method"],
            path=scope.get("raw_path") or scope["path"].encode(),
            query=scope["query_string"],
            headers=scope["headers"],
        )
        unverified = await self._admission.identify(
            signed, headers, address, is_own_user=OWN_USER in scope.get("state", ())
        )
        body = await self._read_body(headers, receive, ticket)
        unverified.verify(body)
        found = _read_request(headers, scope["query_string"], body, arguments)
        if found is None:
            return query_protocol.encode_no_action(request_id)
        action, request = found
        arguments["action"] = action.name
        if action.name not in _READING:
            self._admission.check_read_only()
        call = await self._call(unverified, headers, address, scope, request)
        if action.name == RECEIVE:
            ticket.kind = RequestKind.WAIT
        self._pressure.admit(ticket, call.api.caller.namespace, len(body))
        answer = await self._carry_out(call, action, request, receive, ticket)
        for queue, counts in call.counted.items():
            call.api.app.telemetry.meter.served(queue, counts)
        if arguments["protocol"] == "json":
            return json_protocol.encode_answer(answer, request_id)
        return query_protocol.encode_answer(action, answer, request_id)

    async def _carry_out(
        self, call: SqsCall, action: Action, request: Request, receive: Receive, ticket: Ticket
    ) -> Answer | None:
        handler: Handler = HANDLERS.get(action.name) or CLOUDWATCH_HANDLERS[action.name]
        if action.name != RECEIVE:
            return await handler(call, request)
        with end_on_disconnect(receive, ticket) as disconnect:
            answer = await handler(call, request)
            # No await between this check and the sending: a disconnect would be missed.
            if not disconnect.done():
                ticket.undo = call.undo
                return answer
        if call.undo is not None:
            await call.undo()
        raise ClientDisconnected

    async def _read_body(self, headers: Headers, receive: Receive, ticket: Ticket) -> bytes:
        encoding = headers.raw(b"content-encoding")
        if encoding is not None and encoding.lower() != b"identity":
            raise WrongContent("compressed bodies are not supported: send no content-encoding")
        length = headers.raw(b"content-length")
        if length is not None and length.isdigit() and int(length[:20]) > BODY_MAX:
            raise TooLarge(f"the body is larger than {BODY_MAX} bytes")
        ticket.reading = True
        hold = partial(self._hold, ticket)
        body = await read_body(receive, size_max=BODY_MAX, hold=hold)
        ticket.reading = False
        return body

    def _hold(self, ticket: Ticket, size: int, more: bool) -> None:
        self._pressure.hold(ticket, size, unfinished=more)

    async def _call(
        self,
        unverified: UnverifiedCaller,
        headers: Headers,
        address: str | None,
        scope: AsgiScope,
        request: Request,
    ) -> SqsCall:
        own, named = _own_account(unverified), _named_account(request)
        account = named or own
        try:
            api = await self._admission.admit_caller(
                unverified.caller, (Scope.KNOWN,), headers, address, namespace=namespace_of(account)
            )
        except Forbidden:
            caller = unverified.caller
            if account == own or not (caller is LOCAL_CALLER or caller.namespace == EVERYWHERE):
                raise
            if isinstance(request, QueueRequest | GetQueueUrlRequest):
                raise errors.queue_does_not_exist() from None
            raise errors.no_such_resource("SourceArn") from None
        default_region = await self.state.default_region()
        credential = unverified.credential
        region = default_region if credential is None else credential.region
        host = headers.get("host") or f"{self._server.settings.host}:{self._server.settings.port}"
        return SqsCall(
            api=api,
            state=self.state,
            catalog=await self.state.catalog(api.caller.namespace, api.app),
            account=account,
            region=region if REGION.match(region) else default_region,
            default_region=default_region,
            base_url=f"{scope.get('scheme', 'http')}://{host}",
        )

    def _refusal(self, error: HoldfastError, scope: AsgiScope) -> Reply:
        protocol = _protocol_of(scope["headers"]) or "query"
        reply = _error_reply(error_of(error), new_id(), protocol)
        self._count(reply, {}, 0.0)
        return reply._replace(headers=[*reply.headers, *error_headers(error)])

    def _count(self, reply: Reply, arguments: dict[str, Any], ms: float) -> None:
        self._meter.requested(f"sqs {arguments.get('action', 'unknown')}", reply.status, ms)


def _is_of_browser(headers: list[tuple[bytes, bytes]]) -> bool:
    """True for a request that a page can make a browser send. Older browsers do not say what it is
    for (Sec-Fetch-Mode), but no page can set Authorization with an image."""
    names = {name for name, _ in headers}
    agents = (value for name, value in headers if name == b"user-agent")
    return b"authorization" not in names and any(each.startswith(b"Mozilla/") for each in agents)


def _protocol_of(headers: list[tuple[bytes, bytes]]) -> Protocol | None:
    """The protocol of an SQS client; None for other programs."""
    for name, value in headers:
        if name == b"x-amz-target":
            return "json"
        if name == b"content-type":
            if value.startswith(b"application/x-amz-json"):
                return "json"
            if value.lower().startswith(b"application/x-www-form-urlencoded"):
                return "query"
    return None


def _read_request(
    headers: Headers, query: bytes, body: bytes, arguments: dict[str, Any]
) -> tuple[Action, Request] | None:
    """The action and the request; None if the request names no action."""
    queue_url = arguments.get("queue_url")
    if arguments["protocol"] == "json":
        action = json_protocol.action_of(headers.get("x-amz-target", ""))
        return action, json_protocol.decode_request(action, body, queue_url=queue_url)
    parameters = query_protocol.read_parameters(query, body)
    named = query_protocol.action_of(parameters, on_queue_path=queue_url is not None)
    if named is None:
        return None
    return named, query_protocol.decode_request(named, parameters, queue_url=queue_url)


def _error_reply(error: SqsError, request_id: str, protocol: Protocol) -> Reply:
    if protocol == "json":
        return json_protocol.encode_error(error, request_id)
    return query_protocol.encode_error(error, request_id)


def _own_account(unverified: UnverifiedCaller) -> str:
    """The account of the caller. A local caller, whose credentials are not verified, may state an
    account as its access key, as with other emulators."""
    caller, credential = unverified.caller, unverified.credential
    if caller is LOCAL_CALLER and credential is not None and ACCOUNT.match(credential.key_id):
        return credential.key_id
    if caller.namespace == EVERYWHERE:
        return DEFAULT_ACCOUNT
    account = account_of(caller.namespace)
    if not ACCOUNT.match(account):
        raise Forbidden(
            f"the namespace {caller.namespace} has no SQS account: use the namespace default, or"
            " one whose name is an account of 12 digits"
        )
    return account


def _named_account(request: Request) -> str | None:
    """The account that a request names, if it does."""
    match request:
        case QueueRequest(queue_url=url):
            return queue_of(url).account
        case GetQueueUrlRequest(queue_owner_aws_account_id=account):
            return account if account and ACCOUNT.match(account) else None
        case StartMessageMoveTaskRequest(source_arn=text):
            arn = parse_arn(text)
        case ListMessageMoveTasksRequest(source_arn=text):
            arn = parse_arn(text)
        case CancelMessageMoveTaskRequest(task_handle=handle):
            _, arn = moves.read_handle(handle)
        case _:
            return None
    return None if arn is None else arn.account
