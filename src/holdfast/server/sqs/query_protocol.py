"""The Query protocol of older AWS SDKs: form parameters to requests, answers to XML. Pure.

Lists and maps are flattened: `MessageAttribute.2.Value.DataType`. XML is written, never parsed.
"""

from __future__ import annotations

import functools
import re
from base64 import b64decode, b64encode
from binascii import a2b_qp
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin

from msgspec import Struct
from msgspec.structs import fields

from holdfast.core.text import xml_bytes
from holdfast.server.http.response import Reply
from holdfast.server.sqs.errors import (
    SqsError,
    invalid_value,
    malformed,
    missing_parameter,
    unknown_action,
)
from holdfast.server.sqs.shapes import ACTIONS, Action, Answer, BatchEntry, Request

CONTENT_TYPE: Final = b"text/xml"
PARAMETERS_MAX: Final = 10_000
"""A batch of ten messages with ten attributes each has fewer than 500."""

Parameters: TypeAlias = dict[str, str]


def read_parameters(query: bytes, body: bytes) -> Parameters:
    """The parameters in a query string and in the body of a form. The body has precedence."""
    if query.count(b"&") + body.count(b"&") > PARAMETERS_MAX:
        raise malformed("The request has too many parameters.")
    pairs = (each.partition(b"=") for each in (*query.split(b"&"), *body.split(b"&")) if each)
    try:
        return {_unquoted(name): _unquoted(value) for name, _, value in pairs}
    except UnicodeDecodeError:
        raise malformed("The request has parameters that are not UTF-8.") from None


def action_of(parameters: Parameters, *, on_queue_path: bool) -> Action | None:
    """The action that the parameters name; `None` if they name none. The path of a queue takes
    only actions on that queue."""
    name = parameters.get("Action")
    if name is None:
        return None
    action = ACTIONS.get(name)
    if action is None or (on_queue_path and not action.on_queue):
        raise unknown_action(name)
    return action


def decode_request(
    action: Action, parameters: Parameters, *, queue_url: str | None = None
) -> Request:
    """The request in parameters. `queue_url` stands in for a parameter QueueUrl."""
    tree = _tree(parameters)
    if queue_url is not None:
        tree.setdefault("QueueUrl", queue_url)
    request: Request = _read_struct(action.request, tree, "")
    return request


def encode_answer(action: Action, answer: Answer | None, request_id: str) -> Reply:
    """The reply with the result of an action."""
    name = action.name
    result = "" if answer is None else _element(f"{name}Result", _written_struct(answer))
    metadata = f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
    return _reply(
        200, f'<{name}Response xmlns="{_NAMESPACE}">{result}{metadata}</{name}Response>', request_id
    )


def encode_error(error: SqsError, request_id: str) -> Reply:
    """The reply with an error."""
    fault = "Sender" if error.sender_fault else "Receiver"
    text = (
        f'<ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>{fault}</Type>'
        f"<Code>{error.code}</Code><Message>{_escaped(error.query_message)}</Message><Detail/>"
        f"</Error><RequestId>{request_id}</RequestId></ErrorResponse>"
    )
    return _reply(error.status, text, request_id)


def encode_no_action(request_id: str) -> Reply:
    """The reply to a request that names no action."""
    return _reply(404, "<UnknownOperationException/>", request_id)


_NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"


def _reply(status: int, text: str, request_id: str) -> Reply:
    headers = [(b"content-type", CONTENT_TYPE), (b"x-amzn-requestid", request_id.encode())]
    return Reply(status, headers, f'<?xml version="1.0"?>{text}'.encode())


def _unquoted(wire: bytes) -> str:
    """A name or a value as text."""
    wire = wire.replace(b"+", b" ")
    if b"%" in wire:
        if _STRAY_PERCENT.search(wire):
            raise malformed("A percent sign must be followed by two hexadecimal digits.")
        # Quoted-printable has the same escapes behind another sign, and is decoded in C.
        wire = a2b_qp(wire.replace(b"=", b"=3D").replace(b"%", b"="))
    return wire.decode()


_STRAY_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class _Member(NamedTuple):
    """A field of a shape and its name in this protocol. `kind` is `tuple`, `dict` or the type of
    a single value; `hint` is the type of the single values in it."""

    field: str
    name: str
    required: bool
    hint: Any
    kind: Any


_LIST_NAMES: Final = {
    "actions": "ActionName",
    "attribute_names": "AttributeName",
    "aws_account_ids": "AWSAccountId",
    "binary_list_values": "BinaryListValue",
    "message_attribute_names": "MessageAttributeName",
    "message_system_attribute_names": "MessageSystemAttributeName",
    "messages": "Message",
    "queue_urls": "QueueUrl",
    "string_list_values": "StringListValue",
    "tag_keys": "TagKey",
}
_MAP_NAMES: Final = {
    "attributes": "Attribute",
    "message_attributes": "MessageAttribute",
    "message_system_attributes": "MessageSystemAttribute",
    "tags": "Tag",
}


@functools.cache
def _members(shape: type[Struct]) -> tuple[_Member, ...]:
    return tuple(_member(field) for field in fields(shape))


def _member(field: Any) -> _Member:
    hint = _bare(field.type)
    origin = get_origin(hint)
    if origin is dict:
        name, hint = _MAP_NAMES[field.name], get_args(hint)[1]
    elif origin is tuple:
        hint = get_args(hint)[0]
        # The entries of a batch have the name of their shape.
        name = _LIST_NAMES.get(field.name) or hint.__name__
    else:
        name = field.encode_name
    return _Member(field.name, name, field.required, hint, origin or hint)


def _bare(hint: Any) -> Any:
    """A type without `None` and without bounds."""
    origin = get_origin(hint)
    if origin is Annotated:
        return get_args(hint)[0]
    if origin in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
        return _bare(hint)
    return hint


def _tree(parameters: Parameters) -> dict[str, Any]:
    """The parameters by the parts of their names. A name that is both a value and a branch, or
    that is longer than any parameter of SQS, is ignored as an unknown one."""
    tree: dict[str, Any] = {}
    for name, value in parameters.items():
        *branches, leaf = name.split(".", _DEPTH_MAX)
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
            if not isinstance(node, dict):
                break
        else:
            node.setdefault(leaf, value)
    return tree


_DEPTH_MAX: Final = 8


def _read_struct(shape: type[Struct], node: dict[str, Any], path: str) -> Any:
    """The shape whose members are in a node. `path` is the name of the node, with a dot."""
    found: dict[str, Any] = {}
    for member in _members(shape):
        value: Any
        if member.kind is tuple:
            value = tuple(_read_list(member, node, path))
        elif member.kind is dict:
            value = dict(_read_map(member, node, path))
        else:
            value = _read_value(member.hint, node.get(member.name), path + member.name)
        if value or (value is not None and member.kind not in (tuple, dict)):
            found[member.field] = value
        elif member.required and _is_batch(member):
            # An empty batch has an error of its own.
            found[member.field] = ()
        elif member.required:
            raise missing_parameter(path + member.name)
    return shape(**found)


def _is_batch(member: _Member) -> bool:
    return isinstance(member.hint, type) and issubclass(member.hint, BatchEntry)


def _read_list(member: _Member, node: dict[str, Any], path: str) -> Iterator[Any]:
    members = node.get(member.name)
    # AWS's own examples leave out the number of an only member.
    for number, each in [(1, members)] if isinstance(members, str) else _numbered(members):
        value = _read_value(member.hint, each, f"{path}{member.name}.{number}")
        if value is not None:
            yield value


def _read_map(member: _Member, node: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    key_name = "Key" if member.name == "Tag" else "Name"
    members = node.get(member.name)
    alone = isinstance(members, dict) and key_name in members
    for number, each in [(1, members)] if alone else _numbered(members):
        prefix = f"{path}{member.name}.{number}"
        if not isinstance(each, dict):
            continue
        key = _read_value(str, each.get(key_name), f"{prefix}.{key_name}")
        if key is None:
            raise missing_parameter(f"{prefix}.{key_name}")
        value = _read_value(member.hint, each.get("Value"), f"{prefix}.Value")
        if value is None:
            raise missing_parameter(f"{prefix}.Value")
        yield key, value


def _numbered(node: Any) -> list[tuple[int, Any]]:
    """The members of a flattened list in order. Clients may leave numbers out."""
    if not isinstance(node, dict):
        return []
    numbers = ((int(name), each) for name, each in node.items() if _NUMBER.fullmatch(name))
    return sorted(numbers, key=lambda pair: pair[0])


_NUMBER: Final = re.compile(r"[0-9]{1,9}")


def _read_value(hint: Any, value: Any, name: str) -> Any:
    """A single value; `None` if it is absent."""
    if issubclass(hint, Struct):
        return _read_struct(hint, value, f"{name}.") if isinstance(value, dict) else None
    if not isinstance(value, str):
        return None
    if hint is int:
        if not _INTEGER.fullmatch(value) or not -(2**31) <= int(value) < 2**31:
            raise invalid_value(name, value, "Must be an integer.")
        return int(value)
    if hint is bytes:
        try:
            return b64decode(value, validate=True)
        except ValueError:
            raise invalid_value(name, value, "Must be base64 encoded.") from None
    return value


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")


def _written_struct(value: Struct) -> str:
    parts: list[str] = []
    for member in _members(type(value)):
        content = getattr(value, member.field)
        if content is None:
            continue
        if member.kind is tuple:
            parts += [_element(member.name, _written(each)) for each in content]
        elif member.kind is dict:
            key_name = "Key" if member.name == "Tag" else "Name"
            parts += [
                _element(
                    member.name,
                    _element(key_name, _escaped(key)) + _element("Value", _written(each)),
                )
                for key, each in content.items()
            ]
        else:
            parts.append(_element(member.name, _written(content)))
    return "".join(parts)


def _written(value: Any) -> str:
    match value:
        case str():
            return _escaped(value)
        case bytes():
            return b64encode(value).decode()
        case bool():
            return "true" if value else "false"
        case Struct():
            return _written_struct(value)
        case _:
            return str(value)


def _element(name: str, content: str) -> str:
    return f"<{name}>{content}</{name}>" if content else f"<{name}/>"


def _escaped(text: str) -> str:
    """The text as the content of an element. A parser would turn a bare CR into LF, and clients
    would find a wrong MD5. Characters that XML cannot carry are replaced."""
    if xml_bytes(text) is None:
        text = _ILLEGAL.sub("\ufffd", text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\r", "&#xD;")


_ILLEGAL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
