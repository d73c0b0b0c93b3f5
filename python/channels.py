"""Channels to env-nodes: addresses, TLS, bearer token, keepalive.

Invariant: a channel detects a dead peer within seconds and reconnects within seconds. Retries are
in retry.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import grpc

#: The default address of an env-node.
DEFAULT_ADDRESS = "http://127.0.0.1:8000"
#: The limit on a reply. The largest are a token with a full history and a page of questions.
_MAX_REPLY_BYTES = 64 << 20

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
        """Returns the metadata of every call."""
        if self.bearer_token_file is None:
            return ()
        token = Path(self.bearer_token_file).read_text(encoding="utf-8").strip()
        return (("authorization", f"Bearer {token}"),)

    def credentials(self) -> grpc.ChannelCredentials:
        """Returns the credentials of a TLS handshake."""

        def read(file: str | None) -> bytes | None:
            return None if file is None else Path(file).read_bytes()

        return grpc.ssl_channel_credentials(
            read(self.ca_file), read(self.key_file), read(self.certificate_file)
        )


def split_addresses(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Splits a text with commas or a list into addresses. The default scheme is `http://`.

    Raises:
        ValueError: There is no address, or an address has a scheme other than http and https.
    """
    texts = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    found = tuple(_with_scheme(text.strip().rstrip("/")) for text in texts if text.strip())
    if not found:
        raise ValueError(
            f"no address of an env-node in {addresses!r}; give for example {DEFAULT_ADDRESS!r}"
        )
    return found


def open_channel(address: str, security: Security) -> grpc.Channel:
    """Returns a channel to one node. It connects at the first call."""
    scheme, _, target = address.partition("://")
    if scheme == "https":
        return grpc.secure_channel(target, security.credentials(), options=_OPTIONS)
    return grpc.insecure_channel(target, options=_OPTIONS)


def _with_scheme(address: str) -> str:
    scheme, separator, _ = address.partition("://")
    if not separator:
        return f"http://{address}"
    if scheme not in ("http", "https"):
        raise ValueError(f"address {address!r} has scheme {scheme!r}; give http or https")
    return address
