"""AWS Signature Version 4: AWS's published vectors, botocore as an oracle, and altered requests."""

import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.server.access.sigv4 import (
    EXPIRES_S_MAX,
    SignatureRefused,
    SignedRequest,
    canonical_request,
    credential_of,
    is_signed,
    signature_of,
    string_to_sign,
)
from tests.server.signed_requests import (
    BODY,
    KEY,
    NOW,
    SECRET,
    Form,
    changed,
    header,
    signed,
)

SUITE = json.loads((Path(__file__).parent / "sigv4_vectors.json").read_text())
VECTORS = {each["name"]: each for each in SUITE["vectors"]}
WITH_SESSION = {name for name in VECTORS if "token" in name or "sts" in name}
SUITE_NOW = 1_440_938_160_000
"""2015-08-30T12:36:00Z."""

MINUTE = 60_000


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


def test_the_credential_is_read_without_a_valid_signature() -> None:
    forms: tuple[Form, ...] = ("header", "query")
    for form in forms:
        stated = credential_of(signed(form, region="us-west-2"))
        assert stated is not None
        assert (stated.key_id, stated.region, stated.service) == (KEY, "us-west-2", "sqs")
    for text in ("Bearer hf_x", "AWS4-HMAC-SHA256 Credential=a/b/c", "AWS4-HMAC-SHA256"):
        assert credential_of(changed(signed(), authorization=text)) is None


@pytest.mark.parametrize(
    ("offset", "code"),
    [
        (0, ""),
        (15 * MINUTE, ""),
        (-15 * MINUTE, ""),
        (15 * MINUTE + 1, "RequestExpired"),
        (-15 * MINUTE - 1, "RequestExpired"),
        (24 * 60 * MINUTE, "RequestExpired"),
    ],
)
def test_the_clocks_may_differ_by_15_minutes(offset: int, code: str) -> None:
    request = signed()
    if not code:
        verify(request, now=NOW + offset)
    else:
        assert refusal(request, now=NOW + offset)[0] == code


def test_a_signed_url_is_valid_until_it_expires() -> None:
    for expires_s in (1, 300, EXPIRES_S_MAX):
        request = signed("query", expires_s=expires_s)
        verify(request, now=NOW + expires_s * 1000)
        verify(request, now=NOW - 15 * MINUTE)
        assert refusal(request, now=NOW + expires_s * 1000 + 1)[0] == "RequestExpired"
        assert refusal(request, now=NOW - 15 * MINUTE - 1)[0] == "RequestExpired"
    for wrong in (0, -1, EXPIRES_S_MAX + 1, 10**9):
        assert refusal(signed("query", expires_s=wrong))[0] == "IncompleteSignature"


@pytest.mark.parametrize("form", ["header", "query"])
def test_the_body_counts(form: Form) -> None:
    request = signed(form)
    assert refusal(request, b"other")[0] == "SignatureDoesNotMatch"
    assert refusal(request, (b"" if form == "query" else BODY) + b"\0")[0] == (
        "SignatureDoesNotMatch"
    )


@pytest.mark.parametrize(
    "kind",
    [
        "UNSIGNED-PAYLOAD",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    ],
)
def test_unsigned_and_streamed_payloads_are_refused(kind: str) -> None:
    """botocore signs with the stated hash, so this signature would be right on AWS."""
    request = signed(headers={"X-Amz-Content-SHA256": kind})
    code, text = refusal(request)
    assert code == "SignatureDoesNotMatch"
    assert kind[:10] in text
    url = f"http://127.0.0.1:7433/?X-Amz-Content-Sha256={kind}"
    assert refusal(signed("query", url=url))[0] == "SignatureDoesNotMatch"


def test_a_stated_hash_must_be_that_of_the_body() -> None:
    right = hashlib.sha256(BODY).hexdigest()
    verify(signed(headers={"X-Amz-Content-SHA256": right}))
    wrong = hashlib.sha256(b"other").hexdigest()
    assert "hash" in refusal(signed(headers={"X-Amz-Content-SHA256": wrong}))[1]


@pytest.mark.parametrize("form", ["header", "query"])
def test_session_tokens_are_refused(form: Form) -> None:
    code, text = refusal(signed(form, session="FwoGZX"))
    assert code == "InvalidClientTokenId"
    assert "AWS_SESSION_TOKEN" in text
    added = changed(signed(form), x_amz_security_token="FwoGZX")
    assert refusal(added)[0] == "SignatureDoesNotMatch"


@pytest.mark.parametrize("form", ["header", "query"])
def test_the_action_must_be_signed(form: Form) -> None:
    """A captured request cannot be turned into another action."""
    request = signed(form, headers={})
    verify(request)
    code, text = refusal(changed(request, x_amz_target="AmazonSQS.DeleteQueue"))
    assert code == "SignatureDoesNotMatch"
    assert "x-amz-target must be signed" in text


@pytest.mark.parametrize(
    ("signed_headers", "code"),
    [
        ("x-amz-date;x-amz-target", "SignatureDoesNotMatch"),
        ("host;x-amz-date", "SignatureDoesNotMatch"),
        ("host;x-amz-date;x-amz-target;x-gone", "SignatureDoesNotMatch"),
        ("x-amz-target;host;x-amz-date", "IncompleteSignature"),
        ("host;host;x-amz-date;x-amz-target", "IncompleteSignature"),
        ("Host;x-amz-date;x-amz-target", "IncompleteSignature"),
        ("host;;x-amz-date;x-amz-target", "IncompleteSignature"),
        ("host x-amz-date", "IncompleteSignature"),
        ("", "IncompleteSignature"),
    ],
)
def test_an_invalid_list_of_signed_headers_is_refused(signed_headers: str, code: str) -> None:
    request = signed()
    given = header(request, "authorization")
    assert "SignedHeaders=host;x-amz-date;x-amz-target" in given
    start, _, rest = given.partition("SignedHeaders=")
    text = f"{start}SignedHeaders={signed_headers},{rest.partition(',')[2]}"
    assert refusal(changed(request, authorization=text))[0] == code


@pytest.mark.parametrize(
    "name", ["authorization", "host", "x-amz-date", "x-amz-target", "x-amz-content-sha256"]
)
def test_headers_that_decide_are_given_once(name: str) -> None:
    request = signed(
        headers={
            "X-Amz-Target": "AmazonSQS.SendMessage",
            "X-Amz-Content-SHA256": hashlib.sha256(BODY).hexdigest(),
        }
    )
    verify(request)
    again = [*request.headers, (name.encode(), header(request, name).encode())]
    twice = SignedRequest(request.method, request.path, request.query, again)
    assert refusal(twice)[0] == "IncompleteSignature"


@pytest.mark.parametrize(
    "text",
    [
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 ",
        "AWS4-HMAC-SHA256 Credential",
        "AWS4-HMAC-SHA256 Credential=,SignedHeaders=,Signature=",
        "AWS4-HMAC-SHA256 Credential=a/20300101/b/sqs/aws4_request",
        "AWS4-HMAC-SHA256 Credential=a/b/c, SignedHeaders=host, Signature=" + "0" * 64,
        "AWS4-HMAC-SHA256 " + "," * 10_000,
        "AWS4-HMAC-SHA256 Credential=" + "/" * 10_000,
        "AWS4-ECDSA-P256-SHA256 Credential=a, SignedHeaders=host, Signature=00",
        "aws4-hmac-sha256 Credential=a, SignedHeaders=host, Signature=00",
    ],
)
def test_an_incomplete_header(text: str) -> None:
    assert refusal(changed(signed(), authorization=text))[0] == "IncompleteSignature"


def test_parts_of_the_header_may_be_in_any_order_and_spacing() -> None:
    request = signed()
    scheme, _, rest = header(request, "authorization").partition(" ")
    parts = [each.strip() for each in rest.split(",")]
    for text in (",".join(reversed(parts)), " ,  ".join(parts), ",".join(parts)):
        verify(changed(request, authorization=f"{scheme}   {text}"))
    for wrong in ([*parts, parts[0]], parts[:2], [*parts, "Extra=1"]):
        text = ", ".join(wrong)
        code, _ = refusal(changed(request, authorization=f"{scheme} {text}"))
        assert code == "IncompleteSignature"


@pytest.mark.parametrize(
    "date", ["", "today", "20300317T174640", "20300230T000000Z", "00000101T000000Z", "٢" * 8]
)
def test_an_invalid_date_is_refused(date: str) -> None:
    assert refusal(changed(signed(), x_amz_date=date))[0] in (
        "IncompleteSignature",
        "SignatureDoesNotMatch",
    )
    assert refusal(changed(signed(), x_amz_date=None))[0] == "IncompleteSignature"


def test_the_scope_must_be_of_a_service_that_is_served() -> None:
    verify(signed(service="monitoring"))
    code, text = refusal(signed(service="s3"))
    assert code == "SignatureDoesNotMatch"
    assert "s3" in text


def test_two_signatures_are_refused() -> None:
    both = changed(signed("query"), authorization=header(signed(), "authorization"))
    assert refusal(both)[0] == "IncompleteSignature"
    bearer = changed(signed("query"), authorization="Bearer hf_x")
    assert refusal(bearer)[0] == "IncompleteSignature"


@pytest.mark.parametrize("name", ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders"])
def test_a_parameter_of_the_query_that_is_missing_or_repeated(name: str) -> None:
    request = signed("query")
    parts = request.query.decode().split("&")
    without = [each for each in parts if not each.startswith(f"X-Amz-{name}=")]
    assert len(without) == len(parts) - 1
    for query in (without, [*parts, f"X-Amz-{name}=1"], [*parts, f"x-amz-{name.lower()}=1"]):
        altered = SignedRequest("POST", b"/", "&".join(query).encode(), request.headers)
        assert refusal(altered)[0] == "IncompleteSignature"


def test_a_parameter_cannot_be_rewritten_to_mean_something_else() -> None:
    request = signed("query", url="http://127.0.0.1:7433/?Body=a%2Bb&Name=x%20y")
    verify(request)
    plus = SignedRequest("POST", b"/", request.query.replace(b"a%2Bb", b"a+b"), request.headers)
    assert refusal(plus)[0] == "SignatureDoesNotMatch"
    verify(SignedRequest("POST", b"/", request.query.replace(b"%20", b"+"), request.headers))


def test_another_method_path_or_secret() -> None:
    request = signed(url="http://127.0.0.1:7433/000000000000/mail")
    verify(request)
    for method, path in (("GET", request.path), ("POST", b"/"), ("POST", request.path + b"/")):
        other = SignedRequest(method, path, b"", request.headers)
        assert refusal(other)[0] == "SignatureDoesNotMatch"
    assert refusal(signed(secret="t" * 40))[0] == "SignatureDoesNotMatch"


def test_a_request_that_is_not_signed() -> None:
    request = changed(signed(), authorization=None)
    assert not is_signed(request)
    assert refusal(request)[0] == "MissingAuthenticationToken"


def test_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the first wrong digit is, the whole signature is compared by the same function."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    request = signed()
    given = header(request, "authorization")
    for at in (1, 32, 64):
        other = "0" if given[-at] != "0" else "1"
        text = given[: len(given) - at] + other + given[len(given) - at + 1 :]
        assert refusal(changed(request, authorization=text))[0] == "SignatureDoesNotMatch"
    assert [(len(a), len(b)) for a, b in compared] == [(64, 64)] * 3


def test_no_text_shows_the_secret_or_the_right_signature() -> None:
    request = signed()
    right = header(request, "authorization")[-64:]
    signature = signature_of(request, NOW)
    with pytest.raises(SignatureRefused) as refused:
        signature.verify(b"", SECRET)
    shown = f"{refused.value} {refused.value!r} {signature!r}"
    assert SECRET not in shown
    assert right not in shown
