"""Errors of botocore → errors of Holdfast: with the remedy, and without any credential."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    EndpointProviderError,
    HTTPClientError,
    IncompleteReadError,
    InvalidConfigError,
    InvalidRegionError,
    LoginError,
    MetadataRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)

from holdfast.core.text import printable, without_credentials
from holdfast.errors import (
    ConfigError,
    EngineUnavailable,
    HoldfastError,
    InvalidJob,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    UsageError,
)

TEXT_MAX: Final = 300

_THROTTLED: Final = frozenset(
    "RequestThrottled Throttling ThrottlingException ThrottledException TooManyRequestsException "
    "RequestLimitExceeded BandwidthLimitExceeded SlowDown KmsThrottled KMS.ThrottlingException "
    "RequestThrottledException PriorRequestNotComplete".split()
)
_UNAVAILABLE: Final = frozenset({"ServiceUnavailable", "ServiceUnavailableException", "OverLimit"})
_DENIED: Final = frozenset({"AccessDenied", "AccessDeniedException", "AuthorizationError"})
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_UNKNOWN_CREDENTIALS: Final = frozenset(
    "InvalidClientTokenId UnrecognizedClientException InvalidAccessKeyId InvalidSecurity "
    "MissingAuthenticationToken MissingAuthenticationTokenException OptInRequired "
    "InvalidSecurityToken NotSignedUp".split()
)
_TIMES: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_SIGNATURES: Final = _TIMES | frozenset(
    "SignatureDoesNotMatch InvalidSignatureException InvalidSignature IncompleteSignature "
    "IncompleteSignatureException".split()
)
_NO_QUEUE: Final = frozenset(
    {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "NonExistentQueue"}
)
_LOST: Final = frozenset(
    "ReceiptHandleIsInvalid AWS.SimpleQueueService.MessageNotInflight MessageNotInflight "
    "InvalidIdFormat".split()
)
_TOO_LONG: Final = re.compile(r"must be shorter than|longer than \d+ bytes|BatchRequestTooLong")
_SKEWED: Final = re.compile(r"signature expired|signature not yet current|skew|is now (later|earl)")
_KEY_IDS: Final = re.compile(r"\b(?:A[KS]IA|AROA|AIDA)[A-Z0-9]{12,}")


class AwsService(NamedTuple):
    """A service by its name and the prefix of its IAM actions."""

    name: str
    iam: str


SQS: Final = AwsService("Amazon SQS", "sqs")
CLOUDWATCH: Final = AwsService("Amazon CloudWatch", "cloudwatch")


class EntryFault(NamedTuple):
    """A failed entry of a batch, or a failed request, by the names of the service."""

    code: str
    text: str
    is_sender: bool
    status: int = 400

    @property
    def may_pass(self) -> bool:
        """Whether the same entry may succeed later: nothing was done for it."""
        return self.code in _THROTTLED | _UNAVAILABLE or self.status == 503

    @property
    def is_doubtful(self) -> bool:
        """Whether the service failed in the middle of the request."""
        return not self.may_pass and (self.status >= 500 or not self.is_sender)

    def may_repeat(self, *, doubtful: bool) -> bool:
        """Whether to try again. `doubtful`: repeating it may do it twice."""
        return self.may_pass or (self.is_doubtful and not doubtful)


class DeniedByPolicy(ConfigError):
    """The credentials are valid, and a policy denies the action on a queue."""


def fault_of_entry(entry: dict[str, Any]) -> EntryFault:
    """The fault of one `Failed` entry in the answer to a batch."""
    is_sender = bool(entry.get("SenderFault", False))
    return EntryFault(str(entry.get("Code", "")), str(entry.get("Message", "")), is_sender)


def fault_of(error: ClientError) -> EntryFault:
    """The fault of a whole request."""
    answer = error.response
    told, meta = answer.get("Error", {}), answer.get("ResponseMetadata", {})
    status = int(meta.get("HTTPStatusCode") or 400)
    # Errors outside the model have the status or a shape's name as their code.
    code = str(told.get("Code", "")).rpartition("#")[2]
    return EntryFault(code, str(told.get("Message", "")), status < 500, status)


def is_unsent(error: BaseException) -> bool:
    """Whether no byte of the request was sent."""
    unsent = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)
    return isinstance(error, unsent)


def is_lost(error: BaseException) -> bool:
    """Whether the request may have been carried out, and its answer was lost."""
    if isinstance(error, SSLError):
        return not _is_certificate(error)
    return isinstance(error, HTTPClientError | IncompleteReadError)


def explain(
    error: BaseException, action: str, where: str, *, doubtful: bool, service: AwsService = SQS
) -> HoldfastError:
    """The error to raise for a failed request. `doubtful`: repeating it may do it twice."""
    if isinstance(error, ClientError):
        fault = fault_of(error)
        return explain_fault(fault, action, where, doubtful=doubtful, service=service)
    place = f"{service.name} at {where}"
    text = f"{place}: {action}: {clean(str(error)) or type(error).__name__}"
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigError(
            f"no AWS credentials for {place}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or"
            " AWS_PROFILE, or give the machine a role"
        )
    if isinstance(error, ProfileNotFound):
        return ConfigError(f"{text}; correct AWS_PROFILE")
    if isinstance(error, CredentialRetrievalError | MetadataRetrievalError):
        # Often a role's service that does not answer for a moment.
        return EngineUnavailable(f"AWS credentials for {place} cannot be read; nothing was changed")
    if isinstance(error, TokenRetrievalError | SSOError | LoginError):
        return ConfigError(f"the AWS login for {place} has expired: run aws sso login")
    if isinstance(error, InvalidRegionError | EndpointProviderError | InvalidConfigError):
        return ConfigError(f"{text}; correct the region or the endpoint in the URL")
    if isinstance(error, ParamValidationError | UnicodeEncodeError):
        return InvalidJob(f"{text}; nothing was sent")
    if isinstance(error, SSLError) and _is_certificate(error):
        return ConfigError(f"{text}; set AWS_CA_BUNDLE to the certificates of the endpoint")
    if isinstance(error, EndpointConnectionError):
        return EngineUnavailable(
            f"{text}; nothing was changed. Check the network, and the region in the URL"
        )
    if is_lost(error) and doubtful:
        return OutcomeUnknown(f"{text}; the call may have taken effect")
    if isinstance(error, BotoCoreError | OSError):
        return EngineUnavailable(f"{text}; nothing was changed")
    raise error


def explain_fault(
    fault: EntryFault,
    action: str,
    where: str,
    *,
    doubtful: bool = True,
    service: AwsService = SQS,
) -> HoldfastError:
    """The error for a request, or an entry of a batch, that the service answered with a fault."""
    place = f"{service.name} at {where}"
    text = f"{place}: {action}: {clean(fault.text) or 'failed'} ({clean(fault.code, 80)})"
    if fault.code in _SIGNATURES:
        return _explain_signature(fault, place, action)
    if fault.code in _DENIED:
        why = f" ({clean(fault.text)})" if fault.text else ""
        or_queue = ", or in the policy of the queue" if service is SQS else ""
        return DeniedByPolicy(
            f"{place} denies {action}{why}: allow the action {service.iam}:{iam_action(action)} in"
            f" the IAM policy of these credentials{or_queue}"
        )
    if fault.code in _EXPIRED:
        return ConfigError(
            f"the AWS credentials for {place} have expired: renew them, and start the process again"
            " if it got them from its environment"
        )
    if fault.code in _UNKNOWN_CREDENTIALS:
        return ConfigError(
            f"{place} does not know the AWS credentials of this process ({clean(fault.code, 80)}):"
            " check the access key, and that the region in the URL is enabled for the account"
        )
    if fault.code in _NO_QUEUE:
        return NotFound(
            f"{place}: {action}: the queue does not exist: create it, or add create=true to the URL"
        )
    if fault.code in _LOST or _is_lost_handle(fault, action):
        return LeaseLost(f"{text}; the message may be delivered to another worker")
    if fault.code == "OverLimit" and action == "ReceiveMessage":
        return EngineUnavailable(
            f"{text}; 120,000 messages of the queue are in flight: settle some before receiving"
        )
    if fault.may_pass:
        return EngineUnavailable(f"{text}; nothing was changed")
    if fault.is_doubtful:
        if doubtful:
            return OutcomeUnknown(f"{text}; the call may have taken effect")
        return EngineUnavailable(text)
    if _TOO_LONG.search(fault.text) or fault.code.endswith("BatchRequestTooLong"):
        return PayloadTooLarge(f"{text}; store the data elsewhere and enqueue a reference to it")
    if action.startswith("SendMessage"):
        return InvalidJob(text)
    return UsageError(text)


def iam_action(action: str) -> str:
    """The IAM action of an action of the API: a batch needs the right of its single action."""
    return action.removesuffix("Batch")


def clean(text: str, most: int = TEXT_MAX) -> str:
    """One line of hostile text, without key ids and without user and password of URLs."""
    line = printable(" ".join(text.split()), one_line=True)
    kept = _KEY_IDS.sub("…", without_credentials(line))
    return kept if len(kept) <= most else f"{kept[:most]}…"


def _explain_signature(fault: EntryFault, place: str, action: str) -> HoldfastError:
    """The service's own text is left out: it repeats the signed headers, tokens included."""
    if _SKEWED.search(fault.text.lower()) or fault.code in _TIMES:
        return ConfigError(
            f"{place} refuses {action} because the clock of this machine differs from its own by"
            " minutes: set the clock, e.g. with NTP"
        )
    if "scoped to a valid region" in fault.text:
        return ConfigError(f"{place} refuses {action}: the region in the URL is not the endpoint's")
    return ConfigError(
        f"{place} refuses the signature of {action}: check the secret access key of these"
        " credentials, and the region in the URL"
    )


def _is_lost_handle(fault: EntryFault, action: str) -> bool:
    """A FIFO queue calls an old handle an invalid parameter."""
    if not action.startswith(("DeleteMessage", "ChangeMessageVisibility")):
        return False
    text = fault.text
    return fault.code in ("InvalidParameterValue", "InvalidParameterValueException") and (
        "ReceiptHandle" in text or "receipt handle" in text or "not available for" in text
        or "VisibilityTimeout" in text
    )  # fmt: skip


def _is_certificate(error: SSLError) -> bool:
    return "CERTIFICATE_VERIFY_FAILED" in str(error)
