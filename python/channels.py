"""Channels to env-nodes: addresses, TLS, bearer token, keepalive.

Invariant: a channel detects a dead peer within seconds and reconnects within seconds. Retries are
in retry.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc

#: The default address of an env-node.
DEFAULT_ADDRESS = "http://127.0.0.1:8000"
#: The limit on a reply. The largest are a token with a full history and a page of questions.
_MAX_REPLY_BYTES = 64 << 20
#: The shortest bearer token that a node accepts.
_MIN_TOKEN_BYTES = 16
_PORTS = {"http": 80, "https": 443}

_OPTIONS = [
    ("grpc.max_receive_message_length", _MAX_REPLY_BYTES),
    # Without keepalive a client waits for minutes on a connection whose peer has disappeared.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # This option is the time limit of one attempt to connect.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # This package retries on other nodes. gRPC's own retries would multiply the attempts.
    ("grpc.enable_retries", 0),
    # gRPC would use a proxy of the environment even for 127.0.0.1. Actors use none.
    ("grpc.enable_http_proxy", 0),
]


@dataclass(frozen=True)
class Security:
    """File names for TLS and the bearer token. A pickled config contains no secret."""

    #: The authorities that sign the nodes' certificates, as PEM, for `https://` addresses. None
    #: means those of the system.
    ca_file: str | None = None
    #: The certificate of this client, as PEM, if nodes require one.
    certificate_file: str | None = None
    #: The key of `certificate_file`, as PEM.
    key_file: str | None = None
    #: The file of the token that nodes expect as `authorization: Bearer …`.
    bearer_token_file: str | None = None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata of every call.

        Raises:
            ValueError: The file has no token that a node accepts.
        """
        if self.bearer_token_file is None:
            return ()
        token = Path(self.bearer_token_file).read_bytes().strip()
        # Nodes and actors refuse the same files.
        if len(token) < _MIN_TOKEN_BYTES or not all(0x20 <= byte <= 0x7E for byte in token):
            raise ValueError(
                f"cannot use bearer_token_file {self.bearer_token_file!r}: give a file with one "
                f"line of printable ASCII, at least {_MIN_TOKEN_BYTES} bytes"
            )
        return (("authorization", f"Bearer {token.decode()}"),)

    def credentials(self) -> grpc.ChannelCredentials:
        """Returns the credentials of a TLS handshake.

        Raises:
            ValueError: A file is not PEM, or the certificate or its key is missing.
        """
        # gRPC would abort the process.
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("give certificate_file and key_file together")

        def read(file: str | None) -> bytes | None:
            if file is None:
                return None
            content = Path(file).read_bytes()
            if b"-----BEGIN" not in content:
                raise ValueError(f"cannot use {file!r}: give a PEM file")
            return content

        return grpc.ssl_channel_credentials(
            read(self.ca_file), read(self.key_file), read(self.certificate_file)
        )


def split_addresses(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Splits a text with commas or a list into addresses, each as `SCHEME://HOST:PORT`.

    The default scheme is `http://`, and the default ports are 80 and 443.

    Raises:
        ValueError: There is no address, or one of them cannot be used.
    """
    texts = [addresses] if isinstance(addresses, str) else list(addresses)
    for text in texts:
        # Addresses are printed. This comes before the split, since a password may have a comma.
        if "@" in text:
            raise ValueError(
                f"address {text.rpartition('@')[2]!r} has a user name or a password before the @, "
                "which is not sent; give a token by bearer_token_file"
            )
    parts = [part.strip() for text in texts for part in text.split(",")]
    found = tuple(_checked(part) for part in parts if part)
    if not found:
        raise ValueError(
            f"no address of an env-node in {addresses!r}; give for example {DEFAULT_ADDRESS!r}"
        )
    return found


def open_channel(address: str, security: Security) -> grpc.Channel:
    """Returns a channel to one node, at an address from `split_addresses`.

    It connects at the first call. Over `http://` the bearer token is not encrypted.

    Raises:
        ValueError: A file cannot be used, or has no effect because the address is `http://`.
    """
    scheme, _, target = address.partition("://")
    if scheme == "https":
        return grpc.secure_channel(target, security.credentials(), options=_OPTIONS)
    if any((security.ca_file, security.certificate_file, security.key_file)):
        raise ValueError(
            f"address {address!r} is without TLS, so ca_file, certificate_file and key_file have "
            "no effect; give an https:// address, or none of these files"
        )
    return grpc.insecure_channel(target, options=_OPTIONS)


def _checked(address: str) -> str:
    """Returns the address with its scheme and port."""
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        port = parts.port
    except ValueError as error:
        raise ValueError(f"address {address!r} cannot be used: {error}") from error
    if parts.scheme not in _PORTS:
        raise ValueError(f"address {address!r} has scheme {parts.scheme!r}; give http or https")
    if port is None:
        port = _PORTS[parts.scheme]
    host = parts.hostname or ""
    is_host = host.isprintable() and not set(host) & set(" \\")
    if not (host and is_host and port) or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(
            f"address {address!r} cannot be used; give only http:// or https://, a host and a port"
        )
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
