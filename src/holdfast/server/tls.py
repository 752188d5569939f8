"""TLS as the settings ask for it: 1.2 or newer, and clients' certificates where a CA is named."""

from __future__ import annotations

import ssl

from holdfast.errors import ConfigError
from holdfast.server.settings import ServerSettings


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """None is plain HTTP. ConfigError for a file that cannot be used, naming it."""
    if settings.tls_cert is None:
        if settings.tls_key or settings.tls_client_ca:
            raise ConfigError("TLS needs the server's certificate too: name it with --tls-cert")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client that asks for new keys again and again would only cost time.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except (OSError, ValueError) as error:
        files = ", ".join(filter(None, (settings.tls_cert, settings.tls_key)))
        raise ConfigError(f"the certificate or its key ({files}) cannot be used: {error}") from None
    if settings.tls_client_ca is not None:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the clients' authorities ({settings.tls_client_ca}) cannot be used: {error}"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    """Asked for an encrypted key only; a service has nobody who could type it."""
    raise ValueError("the key is encrypted: store it without a password, readable to one user")
