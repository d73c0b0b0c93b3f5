"""Channels to env-nodes: addresses, TLS, the bearer token, keepalive.

Invariant: a channel notices a dead peer within seconds and reconnects within seconds. Leaves out retries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import grpc

#: Where an env-node listens unless told otherwise.
DEFAULT_ADDRESS = "http://127.0.0.1:8000"
#: The largest reply: a token with a full history, or a page of questions.
_MAX_REPLY_BYTES = 64 << 20

_OPTIONS = [
    ("grpc.max_receive_message_length", _MAX_REPLY_BYTES),
    # Without these a connection whose peer vanished silently would be waited on for minutes.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # gRPC's name for the time that one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # The retries of this package resume on other nodes; gRPC's own would only add to them.
    ("grpc.enable_retries", 0),
]


@dataclass(frozen=True)
class Security:
    """How to reach nodes that ask for more than a connection. Files, so that a pickled config holds no secret."""

    #: Authorities that may sign a node's certificate, as PEM; None: the system's. For `https://` addresses.
    ca_file: str | None = None
    #: This client's certificate, as PEM, where nodes ask for one.
    certificate_file: str | None = None
    #: The key of `certificate_file`, as PEM.
    key_file: str | None = None
    #: The token that nodes expect as `authorization: Bearer …`.
    bearer_token_file: str | None = None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        if self.bearer_token_file is None:
            return ()
        token = Path(self.bearer_token_file).read_text(encoding="utf-8").strip()
        return (("authorization", f"Bearer {token}"),)

    def credentials(self) -> grpc.ChannelCredentials:
        """What a TLS handshake needs."""

        def read(file: str | None) -> bytes | None:
            return None if file is None else Path(file).read_bytes()

        return grpc.ssl_channel_credentials(read(self.ca_file), read(self.key_file), read(self.certificate_file))


def split_addresses(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Addresses from a text with commas or from a list; `http://` where no scheme is given.

    Raises:
        ValueError: There is none, or one has a scheme other than http and https.
    """
    texts = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    found = tuple(_with_scheme(text.strip().rstrip("/")) for text in texts if text.strip())
    if not found:
        raise ValueError(f"no address of an env-node in {addresses!r}; give for example {DEFAULT_ADDRESS!r}")
    return found


def open_channel(address: str, security: Security) -> grpc.Channel:
    """A channel to one node; it connects at the first call."""
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
