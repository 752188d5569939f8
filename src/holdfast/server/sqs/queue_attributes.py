"""The attributes of an SQS queue: parsed, checked, compared and shown. Pure.

AWS sends and expects every attribute as text, and the record of a queue stores these texts. Their
types and defaults are defined once, in `QueueAttributes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.server.sqs import errors
from holdfast.server.sqs.errors import SqsError, invalid_attribute, invalid_value

QUEUE_NAME_MAX: Final = 80
VISIBILITY_S_MAX: Final = 43_200
RETENTION_S_MAX: Final = 1_209_600
RECEIVE_COUNT_MAX: Final = 1_000
POLICY_BYTES_MAX: Final = 8_192
KMS_KEY_MAX: Final = 2_048
SOURCE_ARNS_MAX: Final = 10
KMS_REUSE_SECONDS: Final = 300

RedrivePermission = Literal["allowAll", "denyAll", "byQueue"]


class RedrivePolicy(Struct, frozen=True, kw_only=True, rename="camel"):
    """The dead-letter queue of a queue, and the number of receives before a message moves."""

    dead_letter_target_arn: str
    max_receive_count: int


class RedriveAllowPolicy(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The queues that may name this queue as their dead-letter queue."""

    redrive_permission: RedrivePermission
    source_queue_arns: tuple[str, ...] = ()

    def permits(self, source: QueueArn) -> bool:
        """True if the source queue may send its dead letters here."""
        match self.redrive_permission:
            case "allowAll":
                return True
            case "denyAll":
                return False
            case "byQueue":
                return str(source) in self.source_queue_arns


class QueueAttributes(Struct, frozen=True, kw_only=True):
    """The attributes that a client can set, with AWS's defaults. `None` means not set."""

    delay_seconds: int = 0
    maximum_message_size: int = 1_048_576
    message_retention_period: int = 345_600
    receive_message_wait_time_seconds: int = 0
    visibility_timeout: int = 30
    policy: str | None = None
    redrive_policy: RedrivePolicy | None = None
    redrive_allow_policy: RedriveAllowPolicy | None = None
    kms_master_key_id: str | None = None
    kms_data_key_reuse_period_seconds: int | None = None
    sqs_managed_sse_enabled: bool = True
    fifo_queue: bool = False
    content_based_deduplication: bool = False
    deduplication_scope: Literal["queue", "messageGroup"] = "queue"
    fifo_throughput_limit: Literal["perQueue", "perMessageGroupId"] = "perQueue"


class QueueArn(NamedTuple):
    """The Amazon resource name of a queue."""

    region: str
    account: str
    name: str

    def __str__(self) -> str:
        return f"arn:aws:sqs:{self.region}:{self.account}:{self.name}"


def parse_arn(text: str) -> QueueArn | None:
    """The queue that an ARN names; `None` if the text is not the ARN of a queue."""
    match = _ARN.fullmatch(text)
    return QueueArn(match[1], match[2], match[3]) if match else None


def attributes_for_create(name: str, given: Mapping[str, str]) -> QueueAttributes:
    """The attributes of a new queue, from CreateQueue. Also checks the name, whose ending must
    agree with the type of the queue."""
    fifo = _fifo_for_create(given)
    check_queue_name(name, fifo=fifo)
    return changed_attributes(QueueAttributes(fifo_queue=fifo), given)


def check_queue_name(name: str, *, fifo: bool) -> None:
    """Raise SqsError unless the name of a new queue is valid; only a FIFO queue has the suffix."""
    stem = name.removesuffix(".fifo") if fifo else name
    if len(name) > QUEUE_NAME_MAX or not _NAME.fullmatch(stem) or (fifo and stem == name):
        raise errors.invalid_queue_name(fifo=fifo)


def changed_attributes(current: QueueAttributes, given: Mapping[str, str]) -> QueueAttributes:
    """The attributes after SetQueueAttributes. Every name and value is checked before any is
    used; whether a dead-letter queue exists is checked by `check_dead_letter_target`."""
    changes = _parsed(given, fifo=current.fifo_queue)
    _choose_encryption(current, given, changes)
    after = replace(current, **changes)
    if after.fifo_throughput_limit == "perMessageGroupId" and (
        after.deduplication_scope != "messageGroup"
    ):
        reason = (
            "The perMessageGroupId value is allowed only when the value for DeduplicationScope"
            " is messageGroup."
        )
        raise invalid_attribute("FifoThroughputLimit", reason)
    return after


def first_difference(current: QueueAttributes, given: Mapping[str, str]) -> str | None:
    """The first given attribute whose value differs from that of an existing queue. CreateQueue on
    an existing queue succeeds if there is none."""
    if _fifo_for_create(given) and not current.fifo_queue:
        return "FifoQueue"
    before = shown_attributes(current)
    after = shown_attributes(changed_attributes(current, given))
    return next((name for name in given if before.get(name) != after.get(name)), None)


def shown_attributes(attributes: QueueAttributes) -> dict[str, str]:
    """The attributes that GetQueueAttributes shows, as text. Unset policies and keys are left
    out, and so are the attributes of FIFO queues on a standard queue."""
    shown: dict[str, str] = {}
    for name, rule in _RULES.items():
        value = getattr(attributes, rule.field)
        if name == "KmsDataKeyReusePeriodSeconds" and attributes.kms_master_key_id:
            value = value or KMS_REUSE_SECONDS
        if value is not None and (attributes.fifo_queue or name not in _FIFO_NAMES):
            shown[name] = _text(value)
    return shown


def selected_attributes(names: Iterable[str], values: Mapping[str, str]) -> dict[str, str]:
    """The attributes that a GetQueueAttributes request names. No names select none."""
    chosen = set(names)
    for name in chosen:
        if name not in ATTRIBUTE_NAMES:
            raise errors.unknown_attribute(name)
    if "All" in chosen:
        return dict(values)
    return {name: value for name, value in values.items() if name in chosen}


def check_dead_letter_target(
    source: QueueArn, attributes: QueueAttributes, target: QueueAttributes | None, text: str
) -> None:
    """Raise SqsError unless the queue that a RedrivePolicy names exists, permits the source, and
    has its account, region and type. `text` is the policy as the client wrote it."""
    policy = attributes.redrive_policy
    assert policy is not None
    arn = parse_arn(policy.dead_letter_target_arn)
    if arn is None or target is None:
        raise errors.no_dead_letter_target(text)
    if (arn.region, arn.account) != (source.region, source.account):
        reason = "Dead-letter target owner should be same as the source."
    elif attributes.fifo_queue != target.fifo_queue:
        reason = "Dead-letter queue must be same type of queue as the source."
    elif target.redrive_allow_policy and not target.redrive_allow_policy.permits(source):
        reason = "The redrive allow policy of the dead letter target does not permit this queue."
    else:
        return
    raise invalid_value("RedrivePolicy", text, reason)


_ARN: Final = re.compile(r"arn:aws[a-z-]*:sqs:([a-z0-9-]{1,40}):([0-9]{12}):([A-Za-z0-9_.-]{1,80})")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


def _fifo_for_create(given: Mapping[str, str]) -> bool:
    """True if CreateQueue asks for a FIFO queue. AWS does not accept "false"."""
    text = given.get("FifoQueue")
    if text is None:
        return False
    if text.lower() == "false":
        raise errors.unknown_attribute("FifoQueue")
    if text.lower() != "true":
        raise invalid_attribute("FifoQueue")
    return True


def _parsed(given: Mapping[str, str], *, fifo: bool) -> dict[str, Any]:
    """The values of given attributes, by the field of `QueueAttributes`."""
    for name in given:
        if not fifo and name in ("DeduplicationScope", "FifoThroughputLimit"):
            raise errors.fifo_only_attribute(name)
        if name not in _RULES or (not fifo and name in _FIFO_NAMES):
            raise errors.unknown_attribute(name)
    return {_RULES[name].field: _RULES[name].parse(name, text) for name, text in given.items()}


def _choose_encryption(
    current: QueueAttributes, given: Mapping[str, str], changes: dict[str, Any]
) -> None:
    """A queue has one kind of encryption: the one given last."""
    key = changes.get("kms_master_key_id")
    managed = changes.get("sqs_managed_sse_enabled")
    if key and managed:
        raise errors.two_encryptions()
    if key:
        changes["sqs_managed_sse_enabled"] = False
    elif managed or ("KmsMasterKeyId" in given and current.kms_master_key_id):
        changes["kms_master_key_id"] = None
        changes["kms_data_key_reuse_period_seconds"] = None


class _Rule(NamedTuple):
    """The field of an attribute, and the function that parses its value."""

    field: str
    parse: Callable[[str, str], Any]


def _integer(field: str, least: int, most: int) -> _Rule:
    def parse(name: str, text: str) -> int:
        if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise invalid_attribute(name)
        return int(text)

    return _Rule(field, parse)


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")


def _one_of(field: str, *words: str) -> _Rule:
    def parse(name: str, text: str) -> str:
        if text not in words:
            raise invalid_attribute(name)
        return text

    return _Rule(field, parse)


def _boolean(name: str, text: str) -> bool:
    if (word := text.lower()) not in ("true", "false"):
        raise invalid_attribute(name)
    return word == "true"


def _fifo(name: str, text: str) -> bool:
    """The type of a FIFO queue, which never changes."""
    if not _boolean(name, text):
        raise errors.queue_type_change()
    return True


def _policy(name: str, text: str) -> str | None:
    if not text:
        return None
    if not isinstance(_json(text), dict):
        raise invalid_attribute(name)
    return text


def _key(name: str, text: str) -> str | None:
    if len(text) > KMS_KEY_MAX:
        raise invalid_attribute(name)
    return text or None


def _redrive_policy(name: str, text: str) -> RedrivePolicy | None:
    if not text:
        return None
    policy = _json(text)
    if not isinstance(policy, dict):
        raise invalid_attribute(name, "Redrive policy is not a valid JSON map.")
    known = ("maxReceiveCount", "deadLetterTargetArn")
    for key in known:
        if policy.get(key) is None:
            reason = f"Redrive policy does not contain mandatory attribute: {key}."
            raise invalid_value(name, text, reason)
    if len(policy) > len(known):
        reason = f"Only following attributes are supported: [{', '.join(known)}]."
        raise invalid_value(name, text, reason)
    arn = policy["deadLetterTargetArn"]
    if not isinstance(arn, str) or not parse_arn(arn):
        reason = "Dead-letter target ARN should be fully qualified ARN."
        raise invalid_value(name, text, reason)
    return RedrivePolicy(
        dead_letter_target_arn=arn,
        max_receive_count=_receive_count(name, text, policy["maxReceiveCount"]),
    )


def _receive_count(name: str, text: str, count: object) -> int:
    digits = str(count) if isinstance(count, int | str) else ""
    if not _COUNT.fullmatch(digits) or not 1 <= int(digits) <= RECEIVE_COUNT_MAX:
        reason = (
            f"Invalid value for maxReceiveCount: {errors.shortened(count)},"
            f" valid values are from 1 to {RECEIVE_COUNT_MAX} both inclusive."
        )
        raise invalid_value(name, text, reason)
    return int(digits)


_COUNT: Final = re.compile(r"[0-9]{1,4}")


def _redrive_allow_policy(name: str, text: str) -> RedriveAllowPolicy | None:
    if not text:
        return None
    try:
        policy = msgspec.convert(_json(text), _StrictAllowPolicy)
    except msgspec.ValidationError:
        reason = (
            "Amazon SQS can't create the redrive allow policy, as it’s in an unsupported format."
        )
        raise invalid_attribute(name, reason) from None
    by_queue = policy.redrive_permission == "byQueue"
    arns = policy.source_queue_arns
    if by_queue and not arns:
        raise _refused_allow_policy(
            text,
            "When you specify the byQueue permission type, you must also specify one or more"
            " sourceQueueArns values.",
        )
    if arns and not by_queue:
        raise _refused_allow_policy(
            text,
            "To specify one or more source queue ARNs, you must set redrivePermission to byQueue.",
        )
    if len(arns) > SOURCE_ARNS_MAX:
        raise _refused_allow_policy(
            text, f"The maximum number of source queue ARNs you can specify is {SOURCE_ARNS_MAX}."
        )
    return RedriveAllowPolicy(redrive_permission=policy.redrive_permission, source_queue_arns=arns)


class _StrictAllowPolicy(RedriveAllowPolicy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy as a client writes it, without other members."""


def _refused_allow_policy(text: str, reason: str) -> SqsError:
    reason = f"Amazon SQS can't create the redrive allow policy. {reason}"
    return invalid_value("RedriveAllowPolicy", text, reason)


def _json(text: str) -> Any:
    """The value of a JSON text; `None` if the text is too long, nested too deeply or malformed."""
    if len(text) > POLICY_BYTES_MAX:
        return None
    try:
        wire = text.encode()
        return msgspec.json.decode(wire) if len(wire) <= POLICY_BYTES_MAX else None
    except (ValueError, RecursionError):
        return None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Struct):
        return msgspec.json.encode(value).decode()
    return str(value)


_FIFO_NAMES: Final = (
    *("FifoQueue", "ContentBasedDeduplication"),
    *("DeduplicationScope", "FifoThroughputLimit"),
)

_RULES: Final[dict[str, _Rule]] = {
    "VisibilityTimeout": _integer("visibility_timeout", 0, VISIBILITY_S_MAX),
    "MaximumMessageSize": _integer("maximum_message_size", 1_024, 1_048_576),
    "MessageRetentionPeriod": _integer("message_retention_period", 60, RETENTION_S_MAX),
    "DelaySeconds": _integer("delay_seconds", 0, 900),
    "ReceiveMessageWaitTimeSeconds": _integer("receive_message_wait_time_seconds", 0, 20),
    "Policy": _Rule("policy", _policy),
    "RedrivePolicy": _Rule("redrive_policy", _redrive_policy),
    "RedriveAllowPolicy": _Rule("redrive_allow_policy", _redrive_allow_policy),
    "KmsMasterKeyId": _Rule("kms_master_key_id", _key),
    "KmsDataKeyReusePeriodSeconds": _integer("kms_data_key_reuse_period_seconds", 60, 86_400),
    "SqsManagedSseEnabled": _Rule("sqs_managed_sse_enabled", _boolean),
    "FifoQueue": _Rule("fifo_queue", _fifo),
    "ContentBasedDeduplication": _Rule("content_based_deduplication", _boolean),
    "DeduplicationScope": _one_of("deduplication_scope", "queue", "messageGroup"),
    "FifoThroughputLimit": _one_of("fifo_throughput_limit", "perQueue", "perMessageGroupId"),
}

ATTRIBUTE_NAMES: Final = frozenset(
    (
        *_RULES,
        *("All", "QueueArn", "CreatedTimestamp", "LastModifiedTimestamp"),
        *("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"),
        "ApproximateNumberOfMessagesDelayed",
    )
)
"""The names that GetQueueAttributes accepts."""
