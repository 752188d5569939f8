"""Bodies and attributes of SQS messages: checks, sizes, MD5s, and selection by name. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from typing import Final, TypeVar

from holdfast.core.text import xml_bytes
from holdfast.server.sqs import errors
from holdfast.server.sqs.errors import invalid_parameter
from holdfast.server.sqs.shapes import MessageAttributes, MessageAttributeValue

ATTRIBUTES_MAX: Final = 10
NAME_MAX: Final = 256
TYPE_MAX: Final = 256
TRACE_HEADER_BYTES_MAX: Final = 4_096
"""A trace header does not count towards the size of its message, so it has a bound of its own."""

T = TypeVar("T")


def checked_body(body: str) -> bytes:
    """The UTF-8 bytes of a body, which has at least one character and only legal ones."""
    if not body:
        raise errors.missing_parameter("MessageBody")
    wire = xml_bytes(body)
    if wire is None:
        raise errors.invalid_characters()
    return wire


def check_message_attributes(attributes: MessageAttributes) -> None:
    """Raise SqsError unless the attributes of a new message are valid."""
    if len(attributes) > ATTRIBUTES_MAX:
        count = len(attributes)
        raise invalid_parameter(
            f"Number of message attributes [{count}] exceeds the allowed maximum"
            f" [{ATTRIBUTES_MAX}]."
        )
    for name, value in attributes.items():
        _check_name(name)
        _check_value("(user) ", name, value)


def check_system_attributes(attributes: MessageAttributes) -> None:
    """Raise SqsError unless the system attributes of a new message are valid: AWS accepts only the
    X-Ray header."""
    for name, value in attributes.items():
        if name != "AWSTraceHeader":
            shown = errors.shortened(name)
            raise invalid_parameter(f"Message system attribute name '{shown}' is invalid.")
        _check_value("system ", name, value)
        if value.data_type != "String":
            raise invalid_parameter(
                f"The type of message system attribute '{name}' is invalid. You must use String."
            )
        if len(_bytes(value)) > TRACE_HEADER_BYTES_MAX:
            raise invalid_parameter(
                f"Message system attribute '{name}' must be shorter than"
                f" {TRACE_HEADER_BYTES_MAX} bytes."
            )


def check_fifo_id(name: str, value: str) -> None:
    """Raise SqsError unless a group, deduplication or attempt id has 1 to 128 printable ASCII
    characters."""
    if not _FIFO_ID.fullmatch(value):
        raise errors.invalid_fifo_id(name, value)


def message_size(body: bytes, attributes: MessageAttributes) -> int:
    """The bytes that count towards the limits of a queue and of a batch."""
    if not attributes:
        return len(body)
    return len(body) + sum(
        len(name.encode()) + len(value.data_type.encode()) + len(_bytes(value))
        for name, value in attributes.items()
    )


def md5_of(body: bytes) -> str:
    """The MD5 of a body, which clients compare with their own."""
    digest = _MD5.copy()
    digest.update(body)
    return digest.hexdigest()


def md5_of_attributes(attributes: MessageAttributes) -> str | None:
    """The MD5 of message attributes in AWS's encoding; `None` if there are none."""
    if not attributes:
        return None
    parts: list[bytes] = []
    for name in sorted(attributes):
        value = attributes[name]
        kind = b"\x01" if value.binary_value is None else b"\x02"
        for part in (name.encode(), value.data_type.encode()):
            parts += (len(part).to_bytes(4, "big"), part)
        content = _bytes(value)
        parts += (kind, len(content).to_bytes(4, "big"), content)
    return md5_of(b"".join(parts))


def selected_message_attributes(
    attributes: MessageAttributes, names: Collection[str]
) -> MessageAttributes:
    """The attributes that a receive request names: by name, by prefix (`trace.*`), or all (`All`
    and `.*`). Unknown names select nothing."""
    if not names or not attributes:
        return {}
    if "All" in names or ".*" in names:
        return attributes
    prefixes = tuple(name.removesuffix(".*") for name in names if name.endswith(".*"))
    return {
        name: value
        for name, value in attributes.items()
        if name in names or name.startswith(prefixes)
    }


def selected_system_attributes(values: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    """The system attributes that a receive request names. Unknown names select nothing."""
    chosen = frozenset(names)
    if "All" in chosen:
        return dict(values)
    return {name: value for name, value in values.items() if name in chosen}


_MD5: Final = hashlib.md5(usedforsecurity=False)
"""A copy of it costs less than a new one."""
_FIFO_ID: Final = re.compile(r"[!-~]{1,128}")
_NAME: Final = re.compile(r"[\w.-]+")
_RESERVED: Final = ("aws.", "amazon.")
_NUMBER: Final = re.compile(r"[+-]?(?=[0-9]|\.[0-9])([0-9]*\.?[0-9]*)(?:[eE][+-]?[0-9]{1,4})?")
_NUMBER_MAX: Final = 1_000
_DIGITS_MAX: Final = 38
_EXPONENTS: Final = range(-128, 127)


def _check_name(name: str) -> None:
    if not name:
        raise invalid_parameter(
            "The request must contain non-empty message (user) attribute names."
        )
    if len(name) > NAME_MAX:
        raise invalid_parameter(
            f"Message (user) attribute name must be shorter than {NAME_MAX} bytes."
        )
    if not _NAME.fullmatch(name):
        raise invalid_parameter(
            "Message (user) attributes name can only contain upper and lower score characters,"
            " digits, periods, hyphens and underscores. "
        )
    if name.lower().startswith(_RESERVED) or name.startswith(".") or name.endswith("."):
        raise invalid_parameter(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These"
            " strings are reserved for internal use. Additionally, they cannot start or end with"
            " '.'."
        )
    if ".." in name:
        raise invalid_parameter(
            "Message (user) attribute name must not have successive '.' characters."
        )


def _check_value(kind: str, name: str, value: MessageAttributeValue) -> None:
    if value.string_list_values or value.binary_list_values:
        raise errors.unsupported(
            "Message attribute list values in SendMessage operation are not supported."
        )
    data_type, text, binary = value.data_type, value.string_value, value.binary_value
    base = _checked_base(kind, name, data_type)
    if text is not None and binary is not None:
        raise invalid_parameter(f"Message {kind}attribute '{name}' must have a single value.")
    if not text and not binary:
        raise invalid_parameter(
            f"Message {kind}attribute '{name}' must contain a non-empty value of type"
            f" '{data_type}'."
        )
    if (base == "Binary") == (binary is None):
        field = "Binary" if base == "Binary" else "String"
        raise invalid_parameter(
            f"Message {kind}attribute '{name}' with type '{data_type}' must use field '{field}'."
        )
    if text is not None and xml_bytes(text) is None:
        # The same text as for a body, with another code.
        raise invalid_parameter(errors.invalid_characters().message)
    if text is not None and base == "Number" and not _is_number(text):
        raise invalid_parameter(
            f"Can't cast the value of message {kind}attribute '{name}' to a number."
        )


def _checked_base(kind: str, name: str, data_type: str) -> str:
    """The type of an attribute without its label."""
    base = data_type.partition(".")[0]
    if not data_type:
        raise invalid_parameter(
            f"The message {kind}attribute '{name}' must contain a non-empty message attribute type."
        )
    if len(data_type) > TYPE_MAX:
        raise invalid_parameter(
            f"Message {kind}attribute type must be shorter than {TYPE_MAX} bytes."
        )
    if base not in ("String", "Number", "Binary") or xml_bytes(data_type) is None:
        raise invalid_parameter(
            f"The type of message {kind}attribute '{name}' is invalid. You must use only the"
            " following supported type prefixes: Binary, Number, String."
        )
    return base


def _is_number(text: str) -> bool:
    """True for a number of at most 38 digits and a magnitude between 10^-128 and 10^126."""
    if text.isdigit() and text.isascii() and len(text) <= _DIGITS_MAX:
        return True
    if len(text) > _NUMBER_MAX or not (match := _NUMBER.fullmatch(text)):
        return False
    digits = match[1].replace(".", "").strip("0")
    return not digits or (len(digits) <= _DIGITS_MAX and Decimal(text).adjusted() in _EXPONENTS)


def _bytes(value: MessageAttributeValue) -> bytes:
    if value.binary_value is not None:
        return value.binary_value
    return (value.string_value or "").encode()
