"""Bodies and attributes of SQS messages: checks, sizes, MD5s, and selection by name. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from typing import Final, TypeVar

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
    wire = legal_bytes(body)
    if wire is None:
        raise errors.invalid_characters()
    return wire


def legal_bytes(text: str) -> bytes | None:
    """The UTF-8 bytes of a text; `None` if XML 1.0 cannot carry one of its characters."""
    try:
        wire = text.encode()
    except UnicodeEncodeError:
        # A surrogate that stands alone.
        return None
    # Deleting the legal bytes is many times faster than a regular expression.
    if wire.translate(None, _LEGAL):
        return None
    if not text.isascii() and ("\ufffe" in text or "\uffff" in text):
        return None
    return wire


def check_message_attributes(attributes: MessageAttributes) -> None:
    """The attributes of a new message are valid."""
    if len(attributes) > ATTRIBUTES_MAX:
        count = len(attributes)
        raise invalid_parameter(
            f"Number of message attributes [{count}] exceeds the allowed maximum"
            f" [{ATTRIBUTES_MAX}]."
        )
    for name, value in attributes.items():
        _check_name(name)
        _check_value(f"message (user) attribute '{name}'", value)


def check_system_attributes(attributes: MessageAttributes) -> None:
    """The system attributes of a new message are valid: AWS takes the X-Ray header alone."""
    for name, value in attributes.items():
        if name != "AWSTraceHeader":
            shown = errors.shortened(name)
            raise invalid_parameter(f"Message system attribute name '{shown}' is invalid.")
        subject = f"message system attribute '{name}'"
        _check_value(subject, value)
        if value.data_type != "String":
            raise invalid_parameter(f"The type of {subject} is invalid. You must use String.")
        if len(_bytes(value)) > TRACE_HEADER_BYTES_MAX:
            raise invalid_parameter(
                f"{_capitalized(subject)} must be shorter than {TRACE_HEADER_BYTES_MAX} bytes."
            )


def check_fifo_id(name: str, value: str) -> None:
    """A group, deduplication or attempt id has 1 to 128 printable ASCII characters."""
    if not _FIFO_ID.fullmatch(value):
        raise errors.invalid_fifo_id(name, value)


def message_size(body: bytes, attributes: MessageAttributes) -> int:
    """The bytes that count towards the limits of a queue and of a batch."""
    return len(body) + sum(
        len(name.encode()) + len(value.data_type.encode()) + len(_bytes(value))
        for name, value in attributes.items()
    )


def md5_of(body: bytes) -> str:
    """The MD5 of a body, which clients compare with their own."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: MessageAttributes) -> str | None:
    """The MD5 of message attributes in AWS's encoding; `None` if there are none."""
    if not attributes:
        return None
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        digest.update(_counted(name.encode()))
        digest.update(_counted(value.data_type.encode()))
        digest.update(b"\x01" if value.binary_value is None else b"\x02")
        digest.update(_counted(_bytes(value)))
    return digest.hexdigest()


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


_LEGAL: Final = bytes(each for each in range(256) if each >= 0x20 or each in b"\t\n\r")
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


def _check_value(subject: str, value: MessageAttributeValue) -> None:
    """`subject` names the attribute in the middle of a sentence."""
    if value.string_list_values or value.binary_list_values:
        raise errors.unsupported(
            "Message attribute list values in SendMessage operation are not supported."
        )
    _check_type(subject, value.data_type)
    text, binary = value.string_value, value.binary_value
    if text is not None and binary is not None:
        raise invalid_parameter(f"{_capitalized(subject)} must have a single value.")
    if not text and not binary:
        raise invalid_parameter(
            f"{_capitalized(subject)} must contain a non-empty value of type '{value.data_type}'."
        )
    field = "Binary" if value.data_type.startswith("Binary") else "String"
    if (field == "Binary") == (binary is None):
        raise invalid_parameter(
            f"{_capitalized(subject)} with type '{value.data_type}' must use field '{field}'."
        )
    if text is not None and legal_bytes(text) is None:
        # The same text as for a body, with another code.
        raise invalid_parameter(errors.invalid_characters().message)
    if text is not None and value.data_type.startswith("Number") and not _is_number(text):
        raise invalid_parameter(f"Can't cast the value of {subject} to a number.")


def _check_type(subject: str, data_type: str) -> None:
    if not data_type:
        raise invalid_parameter(f"The {subject} must contain a non-empty message attribute type.")
    if len(data_type) > TYPE_MAX:
        kind = subject.partition(" '")[0]
        raise invalid_parameter(f"{_capitalized(kind)} type must be shorter than {TYPE_MAX} bytes.")
    base, _, _ = data_type.partition(".")
    if base not in ("String", "Number", "Binary") or legal_bytes(data_type) is None:
        raise invalid_parameter(
            f"The type of {subject} is invalid. You must use only the following supported type"
            " prefixes: Binary, Number, String."
        )


def _is_number(text: str) -> bool:
    """At most 38 digits, and a magnitude between 10^-128 and 10^126."""
    if len(text) > _NUMBER_MAX or not (match := _NUMBER.fullmatch(text)):
        return False
    digits = match[1].replace(".", "").strip("0")
    return not digits or (len(digits) <= _DIGITS_MAX and Decimal(text).adjusted() in _EXPONENTS)


def _capitalized(subject: str) -> str:
    return subject[0].upper() + subject[1:]


def _bytes(value: MessageAttributeValue) -> bytes:
    if value.binary_value is not None:
        return value.binary_value
    return (value.string_value or "").encode()


def _counted(wire: bytes) -> bytes:
    return len(wire).to_bytes(4, "big") + wire
