"""The cookie of the dashboard's session, and which requests it counts for.

A cookie is sent by the browser, whatever page caused the request. It therefore counts only with the
header `Holdfast-Dashboard`, which no page of another origin can send, and only from the server's
own page. Over plain HTTP, where a browser shows it to every port of the host, it counts only on
loopback and from the server's own user.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import Forbidden
from holdfast.ops.tokens import SESSION_FORM

DASHBOARD_HEADER = "holdfast-dashboard"
PLAIN_COOKIE = "holdfast_session"
SECURE_COOKIE = "__Host-holdfast_session"

_RULES = "Path=/; HttpOnly; SameSite=Strict"
_COOKIE_BYTES_MAX = 16 * 1024
_REMEDY = (
    "start the server with --tls-cert and --tls-key, or behind a proxy that is given with --proxy"
    " and sends X-Forwarded-Proto: https"
)


def session_text(headers: Mapping[str, str], *, is_secure: bool, reads: bool) -> str | None:
    """The session in the cookie of a request of the server's own page; None for any other. Two
    cookies of the same name count as none, because one of them was set by another page."""
    given = headers.get("cookie")
    if given is None or len(given) > _COOKIE_BYTES_MAX:
        return None
    if DASHBOARD_HEADER not in headers or not is_own_page(
        headers, is_secure=is_secure, reads=reads
    ):
        return None
    name = SECURE_COOKIE if is_secure else PLAIN_COOKIE
    pairs = (part.strip().partition("=") for part in given.split(";"))
    found = [value for key, _, value in pairs if key == name]
    return found[0] if len(found) == 1 and SESSION_FORM.fullmatch(found[0]) else None


def is_own_page(headers: Mapping[str, str], *, is_secure: bool, reads: bool) -> bool:
    """True if a browser says that a page of this server made the request. Browsers name the origin
    of every request that may change something; of others they say that it is the same."""
    origin = headers.get("origin")
    if origin is not None:
        scheme = "https" if is_secure else "http"
        return origin.lower() == f"{scheme}://{headers.get('host', '')}".lower()
    return reads and headers.get("sec-fetch-site") == "same-origin"


def check_sign_in(
    headers: Mapping[str, str], *, is_secure: bool, is_local: bool, is_own_user: bool
) -> None:
    """Raise Forbidden unless a session that is created now would count. `is_local` is True for a
    direct connection from this machine."""
    if DASHBOARD_HEADER not in headers or not is_own_page(
        headers, is_secure=is_secure, reads=False
    ):
        raise Forbidden(
            "only the dashboard signs in: other programs send Authorization: Bearer hf_…; a proxy"
            " must pass on Host and Origin unchanged"
        )
    if is_secure or (is_local and is_own_user):
        return
    if is_local:
        raise Forbidden(
            "over plain HTTP only the user that runs the server can sign in, because browsers send"
            f" cookies to every port of this machine: {_REMEDY}"
        )
    raise Forbidden(f"sign-in needs HTTPS, because others could read the cookie: {_REMEDY}")


def set_cookie(text: str, *, is_secure: bool, age_s: int) -> tuple[bytes, bytes]:
    """The header that stores a session in the browser; an empty text removes it."""
    name = f"{SECURE_COOKIE if is_secure else PLAIN_COOKIE}={text}"
    end = "; Secure" if is_secure else ""
    return b"set-cookie", f"{name}; Max-Age={age_s}; {_RULES}{end}".encode()
