"""AWS's own description of SQS, from botocore: the oracle for shapes and protocols."""

import copy
import functools
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import ResponseParser
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import fields

from holdfast.server.http.response import Reply

S = TypeVar("S", bound=Struct)

LEGAL_TEXT = st.text(
    st.characters(
        codec="utf-8",
        exclude_characters=[
            *(chr(code) for code in range(32) if chr(code) not in "\t\n\r"),
            *("\ufffe", "\uffff"),
        ],
    ),
    max_size=20,
)
"""Text that a message can have."""


@functools.cache
def service_model() -> ServiceModel:
    return ServiceModel(_description(), "sqs")


def _description() -> dict[str, Any]:
    description: dict[str, Any] = Loader().load_service_model("sqs", "service-2")
    return description


# The names that the last description of the Query protocol had, by shape.
ITEM_NAMES = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "BinaryList": "BinaryListValue",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageList": "Message",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
    **{
        f"{action}Batch{kind}EntryList": f"{action}Batch{kind}Entry"
        for action in ("SendMessage", "DeleteMessage", "ChangeMessageVisibility")
        for kind in ("Request", "Result")
    },
}
MAP_NAMES = {
    "MessageBodyAttributeMap": "MessageAttribute",
    "MessageBodySystemAttributeMap": "MessageSystemAttribute",
    "MessageSystemAttributeMap": "Attribute",
    "QueueAttributeMap": "Attribute",
    "TagMap": "Tag",
}


@functools.cache
def query_model() -> ServiceModel:
    """The service as botocore described it while it spoke the Query protocol."""
    description = copy.deepcopy(_description())
    description["metadata"] |= {
        "protocol": "query",
        "protocols": ["query"],
        "xmlNamespace": "http://queue.amazonaws.com/doc/2012-11-05/",
    }
    shapes = description["shapes"]
    for name, item in ITEM_NAMES.items():
        shapes[name]["member"]["locationName"] = item
        shapes[name]["flattened"] = True
    for name, item in MAP_NAMES.items():
        key = "Key" if item == "Tag" else "Name"
        shapes[name]["key"]["locationName"] = key
        shapes[name]["value"]["locationName"] = "Value"
    for shape in shapes.values():
        for member in shape.get("members", {}).values():
            names = MAP_NAMES | ITEM_NAMES
            if member["shape"] in names:
                member["locationName"] = names[member["shape"]]
    for operation in description["operations"].values():
        if "output" in operation:
            operation["output"]["resultWrapper"] = operation["output"]["shape"]
    return ServiceModel(description, "sqs")


def parse_reply(
    parser: ResponseParser, model: ServiceModel, reply: Reply, name: str
) -> dict[str, Any]:
    """The reply to an action as botocore reads it."""
    response = {
        "status_code": reply.status,
        "headers": {key.decode(): value.decode() for key, value in reply.headers},
        "body": reply.body,
    }
    result: dict[str, Any] = parser.parse(response, model.operation_model(name).output_shape)
    return result


def plain(value: Struct) -> dict[str, Any]:
    """A request or an answer as botocore has it: without absent and empty members."""
    described: dict[str, Any] = _filled(msgspec.to_builtins(value, builtin_types=(bytes,)))
    return described


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        filled = {key: _filled(each) for key, each in value.items()}
        return {key: each for key, each in filled.items() if each not in (None, [], {}, ())}
    if isinstance(value, list | tuple):
        return [_filled(each) for each in value]
    return value


@functools.cache
def instances(shape: type[S], text: st.SearchStrategy[str] = LEGAL_TEXT) -> st.SearchStrategy[S]:
    """Any request or answer. Members that AWS requires are not empty."""
    members = {field.name: _values(field.type, text, field.required) for field in fields(shape)}
    if shape.__name__ == "MessageAttributeValue":
        members["data_type"] = st.sampled_from(["String", "Binary", "Number.x"])
    return st.builds(shape, **members)


def _values(hint: Any, text: st.SearchStrategy[str], required: bool) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    least = 1 if required else 0
    if origin in (Union, UnionType):
        (hint,) = (each for each in arguments if each is not NoneType)
        return st.none() | _values(hint, text, required)
    if origin is Annotated:
        return st.integers(-(2**31), 2**31 - 1)
    if origin is tuple:
        return st.lists(_values(arguments[0], text, True), min_size=least, max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(text, _values(arguments[1], text, True), min_size=least, max_size=3)
    if issubclass(hint, Struct):
        return instances(hint, text)
    return {
        str: text,
        int: st.integers(0, 2**53),
        bool: st.booleans(),
        bytes: st.binary(max_size=20),
    }[hint]
