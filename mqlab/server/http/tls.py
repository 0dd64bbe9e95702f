"""The certificate of a server."""

from __future__ import annotations

import ssl

from mqlab.config import ServerConfig
from mqlab.errors import ConfigError


def tls_context(server: ServerConfig) -> ssl.SSLContext | None:
    """What connections are encrypted with; None where they are not.

    Raises:
        ConfigError: certificate or key cannot be read, or do not belong together.
    """
    if server.ssl_certfile is None or server.ssl_keyfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    named = f"--ssl-certfile={server.ssl_certfile!r} --ssl-keyfile={server.ssl_keyfile!r}"
    try:
        # Without a password of its own OpenSSL would ask the terminal for one.
        context.load_cert_chain(server.ssl_certfile, server.ssl_keyfile, password="")
    except ssl.SSLError as error:
        remedy = "both must be PEM, the key unencrypted and that of the certificate, which comes before its chain"
        raise ConfigError(f"{named} cannot be used: {error.reason or error}; {remedy}") from error
    except OSError as error:
        raise ConfigError(f"{named} cannot be read: {error.strerror}") from error
    return context
