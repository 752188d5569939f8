"""The one table from errors of Holdfast to those of SQS."""

from __future__ import annotations

from typing import Final

from holdfast.errors import (
    EngineError,
    Forbidden,
    HoldfastError,
    NotAccepting,
    PayloadTooLarge,
    QueueFull,
    QuotaExceeded,
    Unauthenticated,
    UnknownQueue,
    Unsupported,
)
from holdfast.server.access.sigv4 import SignatureRefused
from holdfast.server.http.problems import (
    BadRequest,
    SlowRequest,
    TooLarge,
    Unexpected,
    WrongContent,
)
from holdfast.server.sqs import errors
from holdfast.server.sqs.errors import SqsError


def error_of(error: HoldfastError) -> SqsError:
    """The error that an SQS client gets for an error of Holdfast. Clients try again after a
    throttled request and after a status of 503."""
    text = str(error)
    match error:
        case SignatureRefused(aws_code=code):
            return SqsError(_SIGNATURE_SHAPES[code], text)
        case Unauthenticated():
            return SqsError("UnrecognizedClientException", text)
        case Forbidden():
            return SqsError("AccessDeniedException", text)
        case UnknownQueue():
            return errors.queue_does_not_exist()
        case QuotaExceeded():
            return SqsError("RequestThrottled", text)
        case QueueFull():
            return errors.over_limit(text)
        case Unsupported() | NotAccepting():
            return errors.unsupported(text)
        case TooLarge() | PayloadTooLarge():
            return SqsError("RequestEntityTooLargeException", text)
        case BadRequest() | WrongContent():
            return errors.malformed(text)
        case Unexpected():
            return SqsError("InternalFailure", text)
        case EngineError() | SlowRequest():
            return SqsError("ServiceUnavailableException", text)
        case _:
            return errors.invalid_parameter(text)


_SIGNATURE_SHAPES: Final = {
    "IncompleteSignature": "IncompleteSignatureException",
    "InvalidClientTokenId": "UnrecognizedClientException",
    "MissingAuthenticationToken": "MissingAuthenticationTokenException",
    "RequestExpired": "RequestExpiredException",
    "SignatureDoesNotMatch": "InvalidSignatureException",
}
