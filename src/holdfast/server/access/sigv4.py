"""AWS Signature Version 4 of one request, in the header or in the query. Pure, and fail-closed.

`signature_of` reads the signature before the body has arrived, and checks its form and its time;
`RequestSignature.verify` compares the signature itself. The path is encoded twice, as for all
services of AWS but S3. The body always counts: unsigned and streamed payloads are refused, and so
are session tokens, because no access key of Holdfast has one.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal
from urllib.parse import quote, unquote_to_bytes

import msgspec

from holdfast.core import bounds
from holdfast.errors import Unauthenticated

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICES = ("sqs", "monitoring")
"""The services whose requests the server answers; `monitoring` is CloudWatch."""
SKEW_MS_MAX = 15 * bounds.MINUTE_MS
EXPIRES_S_MAX = 7 * 24 * 60 * 60

_SCHEME = "AWS4-"
_TERMINATOR = "aws4_request"
_PARTS = ("Credential", "SignedHeaders", "Signature")
_QUERY_PREFIX = "X-Amz-"
_QUERY_SIGNATURE = b"X-Amz-Signature"
_MUST_BE_SIGNED = ("host", "x-amz-target", "x-amz-security-token")
"""Headers that decide the meaning of a request: nobody may add or change one after it was signed.
The date and the hash of the body are part of every signature."""
_SINGLE_HEADERS = (
    *("authorization", "host", "x-amz-content-sha256", "x-amz-date"),
    *("x-amz-security-token", "x-amz-target"),
)
_DATE = re.compile(r"[0-9]{8}T[0-9]{6}Z", re.ASCII)
_EXPIRES = re.compile(r"[0-9]{1,7}", re.ASCII)
_HEADER_NAMES = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+(;[a-z0-9!#$%&'*+.^_`|~-]+)*", re.ASCII)
_SIGNATURE = re.compile(r"[0-9a-f]{64}", re.ASCII)
_CREDENTIAL = re.compile(r"\bCredential=([^,\s]*)", re.ASCII)
_CREDENTIAL_MAX = 600
_SCOPE_PART = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)

AwsCode = Literal[
    "IncompleteSignature",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
]


class SignatureRefused(Unauthenticated):
    """Sign the request with a valid access key; `holdfast token create` makes one with `--aws`."""

    code = "signature_refused"

    def __init__(self, aws_code: AwsCode, text: str) -> None:
        """`aws_code` is the code that clients of AWS know."""
        super().__init__(text)
        self.aws_code: AwsCode = aws_code


class SignedRequest(msgspec.Struct, frozen=True):
    """A request without its body, as received: `path` and `query` are not decoded, and the names
    of `headers` are in lower case, each header as often as it was sent."""

    method: str
    path: bytes
    query: bytes
    headers: Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Credential:
    """The access key and the scope that a request states."""

    key_id: str
    day: str
    region: str
    service: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSignature:
    """The signature of a request, not verified yet. `headers` are the values of each header, `date`
    is the time as it was signed, and `is_query` says that the signature stands in the query."""

    request: SignedRequest = field(repr=False)
    headers: Mapping[str, Sequence[str]] = field(repr=False)
    credential: Credential
    date: str
    signed_headers: tuple[str, ...]
    value: str = field(repr=False)
    is_query: bool

    def verify(self, body: bytes, secret: str) -> None:
        """Raise SignatureRefused unless the secret signed this request with this body."""
        body_hash = hashlib.sha256(body).hexdigest()
        if any(stated != body_hash for stated in self.headers.get("x-amz-content-sha256", ())):
            raise _mismatch("the body does not have the hash in X-Amz-Content-Sha256")
        expected = sign(string_to_sign(self, body_hash), secret, self.credential)
        if not hmac.compare_digest(expected.encode(), self.value.encode()):
            raise _mismatch(
                "the signature that the server calculated does not match the one in the request:"
                " check the secret access key, and that no proxy changes the Host header"
            )


def is_signed(request: SignedRequest) -> bool:
    """True if the request has a signature of AWS, valid or not, in any of its versions."""
    return _has_signed_header(request) or _has_signed_query(request)


def credential_of(request: SignedRequest) -> Credential | None:
    """The credential that a request states, whether its signature is valid or not; None if there
    is none, or if it is malformed."""
    for name, value in request.headers:
        if name == b"authorization" and (found := _CREDENTIAL.search(value.decode("latin-1"))):
            return _credential(found[1])
    for name, value in _query_pairs(request.query):
        if name == b"X-Amz-Credential":
            return _credential(value.decode("latin-1"))
    return None


def signature_of(
    request: SignedRequest, now_ms: int, *, services: Collection[str] = SERVICES
) -> RequestSignature:
    """The signature of a request. Raises SignatureRefused if it is missing or incomplete,
    contradicts itself or is out of date."""
    headers = _header_values(request)
    if _has_signed_query(request):
        if "authorization" in headers:
            raise _incomplete("give a signature in the Authorization header or in the query")
        signature, expires_ms = _from_query(request, headers)
    elif _has_signed_header(request):
        signature, expires_ms = _from_header(request, headers), SKEW_MS_MAX
    else:
        raise not_signed("the request is not signed")
    _check_scope(signature, services)
    _check_headers(signature)
    _check_time(signature.date, now_ms, expires_ms)
    return signature


def canonical_request(signature: RequestSignature, body_hash: str) -> bytes:
    """The canonical request: the same text for every spelling of a request."""
    request, values = signature.request, signature.headers
    headers = "".join(f"{name}:{','.join(values[name])}\n" for name in signature.signed_headers)
    parts = (
        request.method,
        _canonical_path(request.path),
        _canonical_query(request.query, without_signature=signature.is_query),
        headers,
        ";".join(signature.signed_headers),
        body_hash,
    )
    return "\n".join(parts).encode("latin-1")


def string_to_sign(signature: RequestSignature, body_hash: str) -> str:
    """The text that is signed."""
    stated = signature.credential
    scope = f"{stated.day}/{stated.region}/{stated.service}/{_TERMINATOR}"
    digest = hashlib.sha256(canonical_request(signature, body_hash)).hexdigest()
    return f"{ALGORITHM}\n{signature.date}\n{scope}\n{digest}"


def sign(text: str, secret: str, scope: Credential) -> str:
    """The signature of a text under the key that is derived from the secret for this scope."""
    key = f"AWS4{secret}".encode()
    for part in (scope.day, scope.region, scope.service, _TERMINATOR, text):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


def unknown_key() -> SignatureRefused:
    """The error for an access key that is unknown, expired or revoked."""
    return SignatureRefused(
        "InvalidClientTokenId", "the access key in the request is unknown, expired or revoked"
    )


def not_signed(text: str) -> SignatureRefused:
    """The error for a request without a signature where one is needed."""
    return SignatureRefused("MissingAuthenticationToken", text)


def _has_signed_header(request: SignedRequest) -> bool:
    for name, value in request.headers:
        if name == b"authorization" and value.lstrip()[: len(_SCHEME)].upper() == _SCHEME.encode():
            return True
    return False


def _has_signed_query(request: SignedRequest) -> bool:
    wanted = _QUERY_SIGNATURE.lower()
    return any(name.lower() == wanted for name, _ in _query_pairs(request.query))


def _from_header(request: SignedRequest, headers: Mapping[str, Sequence[str]]) -> RequestSignature:
    algorithm, _, rest = headers["authorization"][0].partition(" ")
    _check_algorithm(algorithm)
    given: dict[str, str] = {}
    for part in rest.split(","):
        name, _, value = part.strip().partition("=")
        if name not in _PARTS or name in given:
            raise _incomplete(
                f"the Authorization header needs {', '.join(_PARTS)}, each of them once"
            )
        given[name] = value
    for name in _PARTS:
        if not given.get(name):
            raise _incomplete(f"the Authorization header has no {name}")
    if "x-amz-date" not in headers:
        raise _incomplete("the header X-Amz-Date is missing")
    return _signature(request, headers, given, headers["x-amz-date"][0], is_query=False)


def _from_query(
    request: SignedRequest, headers: Mapping[str, Sequence[str]]
) -> tuple[RequestSignature, int]:
    """The signature, and how long it is valid."""
    given: dict[str, str] = {}
    seen: set[str] = set()
    for raw_name, value in _query_pairs(request.query):
        name = raw_name.decode("latin-1")
        lower = name.lower()
        if not lower.startswith(_QUERY_PREFIX.lower()):
            continue
        if lower in seen:
            raise _incomplete(f"the query parameter {name[:40]} is given more than once")
        seen.add(lower)
        given[name[len(_QUERY_PREFIX) :]] = value.decode("latin-1")
    for short in ("Algorithm", *_PARTS, "Date", "Expires"):
        if not given.get(short):
            raise _incomplete(f"the query parameter {_QUERY_PREFIX}{short} is missing")
    _check_algorithm(given["Algorithm"])
    _check_no_session_token(given.get("Security-Token"))
    _check_payload(given.get("Content-Sha256"))
    expires = given["Expires"]
    if not _EXPIRES.fullmatch(expires) or not 1 <= int(expires) <= EXPIRES_S_MAX:
        raise _incomplete(f"X-Amz-Expires must be 1 to {EXPIRES_S_MAX} seconds")
    signature = _signature(request, headers, given, given["Date"], is_query=True)
    return signature, int(expires) * bounds.SECOND_MS


def _signature(
    request: SignedRequest,
    headers: Mapping[str, Sequence[str]],
    given: Mapping[str, str],
    date: str,
    *,
    is_query: bool,
) -> RequestSignature:
    credential = _credential(given["Credential"])
    if credential is None:
        raise _incomplete(f"Credential must be KEY/YYYYMMDD/REGION/SERVICE/{_TERMINATOR}")
    if credential.day != date[:8]:
        raise _mismatch("the day in Credential is not the day of the date")
    names = given["SignedHeaders"]
    signed_headers = tuple(names.split(";"))
    if not _HEADER_NAMES.fullmatch(names) or list(signed_headers) != sorted(set(signed_headers)):
        raise _incomplete("SignedHeaders must be different names in lower case, sorted")
    if not _SIGNATURE.fullmatch(given["Signature"]):
        raise _mismatch("the signature is not 64 hexadecimal digits in lower case")
    return RequestSignature(
        request=request,
        headers=headers,
        credential=credential,
        date=date,
        signed_headers=signed_headers,
        value=given["Signature"],
        is_query=is_query,
    )


def _credential(text: str) -> Credential | None:
    return _read_credential(text) if len(text) <= _CREDENTIAL_MAX else None


@functools.lru_cache(maxsize=1_000)
def _read_credential(text: str) -> Credential | None:
    parts = text.split("/")
    if len(parts) != 5 or parts.pop() != _TERMINATOR or not all(map(_SCOPE_PART.fullmatch, parts)):
        return None
    return Credential(*parts)


def _check_algorithm(name: str) -> None:
    if name != ALGORITHM:
        raise _incomplete(f"the algorithm {name[:40]!r} is not supported: sign with {ALGORITHM}")


def _check_scope(signature: RequestSignature, services: Collection[str]) -> None:
    service = signature.credential.service
    if service not in services:
        allowed = " or ".join(services)
        raise _mismatch(f"the credential is for the service {service[:40]!r}, not for {allowed}")


def _check_headers(signature: RequestSignature) -> None:
    headers = signature.headers
    for name in _SINGLE_HEADERS:
        if len(headers.get(name, ())) > 1:
            raise _incomplete(f"the header {name} is given more than once")
    for name in signature.signed_headers:
        if name not in headers:
            raise _mismatch(f"the header {name[:40]} is signed, but not in the request")
    for name in _MUST_BE_SIGNED:
        if name not in signature.signed_headers and (name == "host" or name in headers):
            raise _mismatch(f"the header {name} must be signed")
    _check_no_session_token(headers.get("x-amz-security-token"))
    for stated in headers.get("x-amz-content-sha256", ()):
        _check_payload(stated)


def _check_no_session_token(given: object) -> None:
    if given is not None:
        raise SignatureRefused(
            "InvalidClientTokenId",
            "access keys of this server have no session token: unset AWS_SESSION_TOKEN",
        )


def _check_payload(stated: str | None) -> None:
    if stated is not None and (stated == "UNSIGNED-PAYLOAD" or stated.startswith("STREAMING-")):
        raise _mismatch(f"payloads of the kind {stated[:40]} are not accepted: sign the body")


def _check_time(date: str, now_ms: int, expires_ms: int) -> None:
    """Raise unless the date is at most 15 minutes ahead, and at most `expires_ms` old."""
    if not _DATE.fullmatch(date):
        raise _incomplete(f"the date {date[:40]!r} is not of the form 20300131T120000Z")
    try:
        at = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise _incomplete(f"{date} is not a date and time") from None
    age_ms = now_ms - (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if age_ms > expires_ms:
        raise SignatureRefused(
            "RequestExpired",
            f"the signature of {date} expired {(age_ms - expires_ms) // 1000} s ago: check the"
            " clock of the client",
        )
    if age_ms < -SKEW_MS_MAX:
        raise SignatureRefused(
            "RequestExpired",
            f"the signature of {date} is {-age_ms // 1000} s ahead of the server: check the clock"
            " of the client",
        )


def _header_values(request: SignedRequest) -> dict[str, list[str]]:
    """The values of each header in the order in which they were sent, without surplus spaces."""
    found: dict[str, list[str]] = {}
    for name, value in request.headers:
        text = b" ".join(value.split()).decode("latin-1")
        found.setdefault(name.decode("latin-1"), []).append(text)
    return found


def _canonical_path(path: bytes) -> str:
    """The path without empty and dot segments, encoded once more than it was sent."""
    kept: list[bytes] = []
    for segment in path.split(b"/"):
        if segment == b"..":
            del kept[-1:]
        elif segment not in (b"", b"."):
            kept.append(segment)
    joined = b"/" + b"/".join(kept)
    is_folder = bool(kept) and path.endswith(b"/")
    return quote(joined, safe="/~") + ("/" if is_folder else "")


def _canonical_query(query: bytes, *, without_signature: bool) -> str:
    pairs = [
        (quote(name, safe="~"), quote(value, safe="~"))
        for name, value in _query_pairs(query)
        if not (without_signature and name == _QUERY_SIGNATURE)
    ]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _query_pairs(query: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values as the parameters are read: a plus is a space, so that it cannot stand in
    for a signed one that means something else."""
    pairs: list[tuple[bytes, bytes]] = []
    for part in query.split(b"&") if query else ():
        if part:
            name, _, value = part.replace(b"+", b" ").partition(b"=")
            pairs.append((unquote_to_bytes(name), unquote_to_bytes(value)))
    return pairs


def _incomplete(text: str) -> SignatureRefused:
    return SignatureRefused("IncompleteSignature", text)


def _mismatch(text: str) -> SignatureRefused:
    return SignatureRefused("SignatureDoesNotMatch", text)
