"""When a failed call is tried again, and how long to wait before it.

Every call of the service may be repeated: Step is a function of (token, action). Invariant: an address that has not been
tried in this round is tried at once; pauses stand between rounds only. Leaves out the calls themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

#: What another attempt can cure. CANCELLED is here because servers and proxies answer an expired deadline with it, and
#: INTERNAL because a connection that breaks inside a reply shows as it; this client cancels nothing itself.
RETRIED = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
    }
)


@dataclass(frozen=True)
class RetryPolicy:
    """How long a client keeps trying."""

    #: Seconds from the first failure until the call is given up; long enough for a node to be replaced.
    total_seconds: float = 300.0
    #: Upper bound of the pause after the first round; doubles with every round.
    first_pause_seconds: float = 0.1
    #: Upper bound of any pause that no node asked for.
    longest_pause_seconds: float = 10.0

    def pause_seconds(self, rounds: int, asked_seconds: float, draw: float) -> float:
        """The pause after `rounds` rounds have failed.

        Args:
            rounds: Rounds over all addresses that have failed; 1 or more.
            asked_seconds: The longest pause that a node asked for (`google.rpc.RetryInfo`), or 0.
            draw: A uniform random number of [0, 1): full jitter, so that many clients do not return at once.
        """
        # The exponent is bounded because 2.0**1024 overflows.
        ceiling = min(self.longest_pause_seconds, self.first_pause_seconds * 2.0 ** min(rounds - 1, 32))
        return asked_seconds + ceiling * draw


def asked_pause_seconds(failure: grpc.RpcError) -> float:
    """The pause that the node asks for by `google.rpc.RetryInfo`; 0 where it asks for none."""
    retry_info = error_details_pb2.RetryInfo()
    if not _unpack(failure, retry_info):
        return 0.0
    delay = retry_info.retry_delay
    return max(0.0, float(delay.seconds) + float(delay.nanos) / 1e9)


def reason_of(failure: grpc.RpcError) -> str:
    """The node's reason by `google.rpc.ErrorInfo`; empty where it gives none."""
    error_info = error_details_pb2.ErrorInfo()
    return str(error_info.reason) if _unpack(failure, error_info) else ""


def _unpack(failure: grpc.RpcError, detail: object) -> bool:
    """Whether the failure bears a detail of `detail`'s type, which is filled in."""
    try:
        status = rpc_status.from_call(failure)
    except ValueError:  # the details contradict the status: a proxy rewrote one of them
        return False
    return status is not None and any(packed.Unpack(detail) for packed in status.details)
