"""AWS Signature Version 4: AWS's published vectors, botocore as an oracle, and altered requests."""

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import botocore.auth
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.server.access.sigv4 import (
    SignatureRefused,
    SignedRequest,
    canonical_request,
    credential_of,
    is_signed,
    signature_of,
    string_to_sign,
)

SUITE = json.loads((Path(__file__).parent / "sigv4_vectors.json").read_text())
VECTORS = {each["name"]: each for each in SUITE["vectors"]}
WITH_SESSION = {name for name in VECTORS if "token" in name or "sts" in name}
SUITE_NOW = 1_440_938_160_000
"""2015-08-30T12:36:00Z."""

KEY, SECRET = "AKHFAAAABBBBCCCC2345", "s" * 40
NOW = 1_900_000_000_000
MINUTE = 60_000
BODY = b'{"QueueUrl":"http://127.0.0.1:7433/000000000000/mail","MessageBody":"hi"}'

Form = Literal["header", "query"]


def parsed(text: str) -> tuple[SignedRequest, bytes]:
    """A request of the suite, as a server receives it."""
    head, _, body = text.partition("\n\n")
    first, *lines = head.split("\n")
    method, _, rest = first.partition(" ")
    target = rest.rpartition(" ")[0]
    path, _, query = target.partition("?")
    headers: list[tuple[bytes, bytes]] = []
    for line in lines:
        if line.startswith(" "):
            name, value = headers.pop()
            headers.append((name, value + b" " + line.encode()))
        else:
            name_text, _, value_text = line.partition(":")
            headers.append((name_text.lower().encode(), value_text.encode()))
    return SignedRequest(method, path.encode(), query.encode(), headers), body.encode()


@pytest.mark.parametrize("name", sorted(set(VECTORS) - WITH_SESSION))
def test_the_published_vectors(name: str) -> None:
    vector = VECTORS[name]
    request, body = parsed(vector["request"])
    signature = signature_of(request, SUITE_NOW, services=("service",))
    assert signature.credential.key_id == SUITE["key_id"]
    body_hash = hashlib.sha256(body).hexdigest()
    assert canonical_request(signature, body_hash).decode() == vector["canonical"]
    assert string_to_sign(signature, body_hash) == vector["signed"]
    signature.verify(body, SUITE["secret"])
    for wrong_body, secret in ((body + b" ", SUITE["secret"]), (body, SUITE["secret"] + "x")):
        with pytest.raises(SignatureRefused) as refused:
            signature.verify(wrong_body, secret)
        assert refused.value.aws_code == "SignatureDoesNotMatch"


@pytest.mark.parametrize("name", sorted(WITH_SESSION))
def test_published_vectors_with_a_session_token_are_refused(name: str) -> None:
    request, _ = parsed(VECTORS[name]["request"])
    with pytest.raises(SignatureRefused) as refused:
        signature_of(request, SUITE_NOW, services=("service",))
    # The one that is not signed could have been added by anybody.
    added = name == "post-sts-header-after"
    assert refused.value.aws_code == (
        "SignatureDoesNotMatch" if added else "InvalidClientTokenId"
    ), str(refused.value)


def signed(
    form: Form = "header",
    *,
    method: str = "POST",
    url: str = "http://127.0.0.1:7433/",
    body: bytes = BODY,
    headers: dict[str, str] | None = None,
    at_ms: int = NOW,
    region: str = "eu-central-1",
    service: str = "sqs",
    secret: str = SECRET,
    expires_s: int = 300,
    session: str | None = None,
) -> SignedRequest:
    """A request signed by botocore, as a server receives it."""
    if form == "query":
        body = b""  # botocore would move it into the query
    if headers is None:
        headers = {"X-Amz-Target": "AmazonSQS.SendMessage"} if form == "header" else {}
    request = AWSRequest(method, url, headers=headers, data=body)
    signer = _signer(form, Credentials(KEY, secret, session), service, region, expires_s)
    with pytest.MonkeyPatch.context() as patch:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
        patch.setattr(botocore.auth, "get_current_datetime", lambda: moment.replace(tzinfo=None))
        signer.add_auth(request)
    target = urlsplit(request.url)
    sent = [(str(key), str(value)) for key, value in request.headers.items()]
    sent.append(("Host", target.netloc))
    return SignedRequest(
        method,
        target.path.encode() or b"/",
        target.query.encode(),
        [(key.lower().encode(), value.encode()) for key, value in sent],
    )


def _signer(form: Form, key: Credentials, service: str, region: str, expires_s: int) -> Any:
    if form == "header":
        return SigV4Auth(key, service, region)
    return SigV4QueryAuth(key, service, region, expires=expires_s)


def verify(request: SignedRequest, body: bytes | None = None, *, now: int = NOW) -> None:
    signature = signature_of(request, now)
    if body is None:
        body = b"" if signature.is_query else BODY
    signature.verify(body, SECRET)


def refusal(
    request: SignedRequest, body: bytes | None = None, *, now: int = NOW
) -> tuple[str, str]:
    with pytest.raises(SignatureRefused) as refused:
        verify(request, body, now=now)
    return refused.value.aws_code, str(refused.value)


def changed(request: SignedRequest, **headers: str | None) -> SignedRequest:
    """The request with other headers, of which None removes one."""
    new = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    kept = [(name, value) for name, value in request.headers if name not in new]
    added = [(name, value.encode()) for name, value in new.items() if value is not None]
    return SignedRequest(request.method, request.path, request.query, [*kept, *added])


def header(request: SignedRequest, name: str) -> str:
    return dict(request.headers)[name.encode()].decode()


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
TOKENS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=12)
SPACED = st.text(" \tabcXYZ0123456789\"',;=/+%~é", max_size=20)


@settings(max_examples=60, deadline=None)
@given(
    form=st.sampled_from(["header", "query"]),
    method=st.sampled_from(["GET", "POST"]),
    path=st.lists(NAMES, max_size=3),
    query=st.lists(st.tuples(NAMES, NAMES), max_size=5, unique_by=lambda pair: pair[0]),
    extra=st.dictionaries(TOKENS, SPACED, max_size=4),
    body=st.binary(max_size=200),
    secret=st.text(st.characters(codec="ascii"), max_size=60),
    at_ms=st.integers(0, 4_000_000_000_000),
)
def test_botocore_signs_what_is_verified(
    *,
    form: Form,
    method: str,
    path: list[str],
    query: list[tuple[str, str]],
    extra: dict[str, str],
    body: bytes,
    secret: str,
    at_ms: int,
) -> None:
    url = "http://127.0.0.1:7433/" + "/".join(quote(each, safe="") for each in path)
    if query:
        pairs = (f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
        url += "?" + "&".join(pairs)
    headers = {f"my-{name}": value for name, value in extra.items()}
    request = signed(
        form, method=method, url=url, headers=headers, body=body, at_ms=at_ms, secret=secret
    )
    signature = signature_of(request, at_ms)
    body = body if form == "header" else b""
    signature.verify(body, secret)
    with pytest.raises(SignatureRefused):
        signature.verify(body + b"x", secret)


@pytest.mark.parametrize("form", ["header", "query"])
def test_a_signature_altered_at_any_byte_is_refused(form: Form) -> None:
    request = signed(form)
    verify(request)
    count = 0
    for altered in altered_everywhere(request, form):
        count += 1
        code, _ = refusal_of_any(altered)
        assert code in ("SignatureDoesNotMatch", "IncompleteSignature", "RequestExpired", "other")
    assert count > 600


def altered_everywhere(request: SignedRequest, form: Form) -> Iterator[SignedRequest]:
    """The request with each byte of its signature, of its query and of its path changed."""
    if form == "header":
        whole = header(request, "authorization")
        for text in altered_texts(whole):
            yield changed(request, authorization=text)
        for text in altered_texts(header(request, "x-amz-date")):
            yield changed(request, x_amz_date=text)
        for text in altered_texts(header(request, "x-amz-target")):
            yield changed(request, x_amz_target=text)
    else:
        for text in altered_texts(request.query.decode()):
            yield SignedRequest(request.method, request.path, text.encode(), request.headers)
    for text in altered_texts(header(request, "host")):
        yield changed(request, host=text)


def altered_texts(text: str) -> Iterator[str]:
    """The text with one character replaced, doubled or left out."""
    for at, letter in enumerate(text):
        other = "1" if letter != "1" else "2"
        yield text[:at] + other + text[at + 1 :]
        yield text[:at] + other + text[at:]
        if letter != " ":
            yield text[:at] + text[at + 1 :]


def refusal_of_any(request: SignedRequest) -> tuple[str, str]:
    """The refusal of an altered request; one of another key does not get this secret."""
    stated = credential_of(request)
    if is_signed(request) and stated is not None and stated.key_id != KEY:
        return "other", ""
    if not is_signed(request):
        return "other", ""
    return refusal(request)
