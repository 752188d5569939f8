"""AWS JSON 1.0, which every current AWS SDK speaks: bytes to requests, answers to replies. Pure.

A well-formed request is decoded by msgspec in one step. Only when that fails, it is read again in
a form that allows nulls, to treat them as absent and to name the fault as AWS does.
"""

from __future__ import annotations

import functools
import re
from types import GenericAlias, NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo, fields

from holdfast.server.http.response import Reply
from holdfast.server.sqs.cloudwatch_shapes import CLOUDWATCH_ACTIONS, TARGET
from holdfast.server.sqs.errors import SqsError, malformed, missing_parameter, unknown_action
from holdfast.server.sqs.shapes import ACTIONS, Action, Answer, BatchEntry, Request

CONTENT_TYPE: Final = b"application/x-amz-json-1.0"
TARGET_PREFIX: Final = "AmazonSQS."


def action_of(target: str) -> Action:
    """The action that the header `X-Amz-Target` names."""
    service, _, name = target.partition(".")
    if service == TARGET and name in CLOUDWATCH_ACTIONS:
        return CLOUDWATCH_ACTIONS[name]
    if (action := ACTIONS.get(name)) is None or service != "AmazonSQS":
        raise unknown_action(target.removeprefix(TARGET_PREFIX))
    return action


def decode_request(action: Action, body: bytes, *, queue_url: str | None = None) -> Request:
    """The request in a body. `queue_url` stands in for a QueueUrl that the body does not have."""
    try:
        return _DECODERS[action.name].decode(body)
    except (ValueError, RecursionError):
        return _decode_slowly(action, body, queue_url)


def encode_answer(answer: Answer | None, request_id: str) -> Reply:
    """The reply with the result of an action."""
    headers = [(b"content-type", CONTENT_TYPE), (b"x-amzn-requestid", request_id.encode())]
    return Reply(200, headers, b"{}" if answer is None else _encode(answer))


def encode_error(error: SqsError, request_id: str) -> Reply:
    """The reply with an error. SDKs that spoke the Query protocol find its code in a header."""
    fault = "Sender" if error.sender_fault else "Receiver"
    headers = [
        (b"content-type", CONTENT_TYPE),
        (b"x-amzn-requestid", request_id.encode()),
        (b"x-amzn-query-error", f"{error.code};{fault}".encode()),
    ]
    body = {"__type": f"{error.kind.namespace}#{error.shape}", "message": error.message}
    return Reply(error.status, headers, _encode(body))


def _decode_slowly(action: Action, body: bytes, queue_url: str | None) -> Request:
    """The request in a body with nulls or without QueueUrl; the precise error of any other."""
    try:
        nullable = _decode_nullable(action, body or b"{}")
    except msgspec.ValidationError as error:
        raise malformed(_type_fault(str(error))) from None
    except RecursionError:
        raise malformed("The request body is nested too deeply.") from None
    except ValueError:
        raise malformed("The request body is not valid JSON.") from None
    if queue_url is not None and getattr(nullable, "queue_url", "") is None:
        nullable = msgspec.structs.replace(nullable, queue_url=queue_url)
    request: Request = _without_nulls(nullable, "")
    return request


def _decode_nullable(action: Action, body: bytes) -> Struct:
    decoder = _NULLABLE_DECODERS[action.name]
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except ValueError:
        if b"\\u" not in body:
            raise
        return decoder.decode(_without_lone_surrogates(body))


def _without_lone_surrogates(body: bytes) -> bytes:
    r"""The body with `\uffff` for each `\ud800` that is not part of a pair. Both are illegal in a
    message; then only the entry of a batch that has it is refused."""
    # Then no backslash is escaped by another one, and each `\u` begins an escape.
    body = body.replace(rb"\\", rb"\u005c")
    return _LONE_SURROGATE.sub(rb"\\uffff", body)


_LONE_SURROGATE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def _type_fault(fault: str) -> str:
    """The words of AWS for a fault that msgspec found."""
    match = _FAULT.match(fault)
    got = match["got"] if match else ""
    wanted = match["wanted"].removesuffix(" | null") if match else ""
    if got == "array":
        return "Start of list found where not expected"
    if got == "object":
        return "Start of structure or map found where not expected."
    if got in _VALUES and wanted in _TYPES:
        return f"{_VALUES[got]} can not be converted to {_TYPES[wanted]}"
    if wanted:
        return "Unexpected field type"
    return f"The request body cannot be read: {fault.partition(' - ')[0]}."


_FAULT: Final = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>\w+)`")
_VALUES: Final = {
    "int": "NUMBER_VALUE",
    "float": "NUMBER_VALUE",
    "str": "STRING_VALUE",
    "bool": "TRUE_VALUE",
}
_TYPES: Final = {"str": "a String", "int": "an Integer", "bytes": "a Blob"}


def _without_nulls(value: Any, path: str) -> Any:
    """A value of a nullable type as one of its own type: nulls are absent. `path` is the name of a
    batch entry in errors, with a dot."""
    match value:
        case tuple():
            present = _bounded([each for each in value if each is not None])
            return tuple(_without_nulls(each, _path(each, n)) for n, each in enumerate(present, 1))
        case dict():
            pairs = _bounded([pair for pair in value.items() if pair[1] is not None])
            return {key: _without_nulls(each, "") for key, each in pairs}
        case Struct():
            own = _OWN_TYPES[type(value)]
            members: dict[str, Any] = {}
            for field in _fields(own):
                member = getattr(value, field.name)
                if member is not None:
                    members[field.name] = _without_nulls(member, "")
                elif field.required:
                    raise missing_parameter(path + field.encode_name)
            return own(**members)
        case _:
            return value


def _bounded(values: list[Any]) -> list[Any]:
    """The members of a list or map, if they are not too many to be looked at one by one."""
    if len(values) > _MEMBERS_MAX:
        raise malformed(f"A list or map has more than {_MEMBERS_MAX} members.")
    return values


_MEMBERS_MAX: Final = 100
_fields: Final = functools.cache(fields)


def _path(entry: Any, number: int) -> str:
    """The name that AWS gives an entry of a batch in errors, with the dot that follows it."""
    own = _OWN_TYPES.get(type(entry))
    return f"{own.__name__}.{number}." if own and issubclass(own, BatchEntry) else ""


_OWN_TYPES: Final[dict[type, type[Struct]]] = {}
"""The type of requests for each of their nullable forms."""


@functools.cache
def _nullable_form(own: type[Struct]) -> type[Struct]:
    """A type like the given one, in which every member at every depth may be absent or null."""

    def member(field: FieldInfo) -> tuple[str, Any, Any]:
        return field.name, _nullable(field.type), None

    names = {field.name: field.encode_name for field in fields(own)}
    form = msgspec.defstruct(
        f"Nullable{own.__name__}", [member(each) for each in fields(own)], rename=names
    )
    _OWN_TYPES[form] = own
    return form


def _nullable(hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (hint,) = (each for each in arguments if each is not NoneType)
        return _nullable(hint)
    if origin is tuple:
        return GenericAlias(tuple, (_nullable(arguments[0]), ...)) | None
    if origin is dict:
        return GenericAlias(dict, (str, _nullable(arguments[1]))) | None
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _nullable_form(hint) | None
    return hint | None


_DECODED: Final = {**ACTIONS, **CLOUDWATCH_ACTIONS}
_DECODERS: Final = {name: msgspec.json.Decoder(action.request) for name, action in _DECODED.items()}
_NULLABLE_DECODERS: Final = {
    name: msgspec.json.Decoder(_nullable_form(action.request)) for name, action in _DECODED.items()
}
_encode: Final = msgspec.json.Encoder().encode
