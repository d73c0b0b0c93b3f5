"""Decides whether and when a failed call is retried.

Every call of the service may be repeated, because Step is a function of (token, action). Invariant:
an address that this round has not tried is tried at once. Pauses occur only between rounds. A slow
query ends its round, because its retry goes to the same node.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

#: Temporary failures, among them those that an actor retries. Servers and proxies return CANCELLED
#: for an expired deadline, and gRPC reports INTERNAL or UNKNOWN for a connection that breaks inside
#: a reply. This client never cancels calls itself.
RETRIED = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)

#: The reason of a query that took too long. Only the node on which it ran recognises its retry, and
#: answers it.
SLOW_QUERY = "WALL_CLOCK"
#: Reasons with which a node that works says that it cannot serve the call. Waiting may be in vain:
#: gold SQL that takes too long never becomes an observation, and a file stays broken.
UNSERVED = frozenset({SLOW_QUERY, "NODE_FAULT", "DATABASE_BROKEN"})
#: A call is given up after so many of these answers from one node.
MAX_UNSERVED = 9
#: Reasons for which a node rejects a token although it can serve a replay of the episode: since it
#: restarted, it has another key, version or database file, or the token has expired.
REPLAYED = frozenset(
    {
        "TOKEN_FOREIGN_KEY",
        "TOKEN_FOREIGN_VERSION",
        "TOKEN_FOREIGN_DATABASE",
        "TOKEN_EXPIRED",
    }
)
#: Reasons with which a node refuses the caller rather than the call.
_REFUSES_CALLER = frozenset({"BEARER_TOKEN_REFUSED", "FOREIGN_ENVIRONMENT"})
#: One step replays its episode at most this often, as in an actor.
MAX_REPLAYS = 8


@dataclass(frozen=True)
class RetryPolicy:
    """How long a client retries."""

    #: The time from the first failure until the client gives up. It allows a node to be replaced.
    total_seconds: float = 300.0
    #: The upper bound of the pause after the first round. It doubles with every round.
    first_pause_seconds: float = 0.1
    #: The upper bound of every pause that no node has requested.
    longest_pause_seconds: float = 10.0

    def pause_seconds(self, rounds: int, asked_seconds: float, draw: float) -> float:
        """Returns the pause after `rounds` failed rounds.

        Args:
            rounds: The number of failed rounds over all addresses, at least 1.
            asked_seconds: The longest pause that a node has requested (`google.rpc.RetryInfo`), or
                0.
            draw: A uniform random number in [0, 1). Full jitter keeps clients from returning at
                once.
        """
        # The exponent is bounded because 2.0**1024 overflows.
        ceiling = min(
            self.longest_pause_seconds, self.first_pause_seconds * 2.0 ** min(rounds - 1, 32)
        )
        return asked_seconds + ceiling * draw


def asked_pause_seconds(failure: grpc.RpcError) -> float:
    """Returns the pause that the node requests by `google.rpc.RetryInfo`, or 0."""
    retry_info = error_details_pb2.RetryInfo()
    if not _unpack(failure, retry_info):
        return 0.0
    delay = retry_info.retry_delay
    return max(0.0, float(delay.seconds) + float(delay.nanos) / 1e9)


def reason_of(failure: grpc.RpcError) -> str:
    """Returns the reason of the node by `google.rpc.ErrorInfo`, or an empty text."""
    error_info = error_details_pb2.ErrorInfo()
    return str(error_info.reason) if _unpack(failure, error_info) else ""


def refuses_caller(failure: grpc.RpcError) -> bool:
    """Returns whether a node, or a proxy in front of it, refuses the caller rather than the call.

    A node gives a reason for each episode token that it refuses.
    """
    code, reason = failure.code(), reason_of(failure)
    return (
        code is grpc.StatusCode.PERMISSION_DENIED
        or reason in _REFUSES_CALLER
        or (code is grpc.StatusCode.UNAUTHENTICATED and not reason)
    )


def _unpack(failure: grpc.RpcError, detail: object) -> bool:
    """Fills in `detail` from the failure. Returns whether the failure has a detail of that type."""
    try:
        status = rpc_status.from_call(failure)
    except ValueError:  # The details contradict the status: a proxy has changed one of them.
        return False
    return status is not None and any(packed.Unpack(detail) for packed in status.details)
