"""What can go wrong between this client and the env-nodes.

What the agent does wrong is an observation and never raised; what is raised here is the caller's or the machines' fault.
"""

from __future__ import annotations

import grpc


class EnvError(Exception):
    """A call to an env-node failed; the episode is as it was before the call."""

    def __init__(self, message: str, code: grpc.StatusCode, reason: str = "") -> None:
        super().__init__(message)
        #: The status of the last attempt.
        self.code = code
        #: The node's machine-readable reason (`google.rpc.ErrorInfo`), or empty.
        self.reason = reason


class EnvRefused(EnvError):
    """The node refuses the call for good: an unknown question, a forged or expired token, a missing bearer token.

    Remedy: in the message. Trying again does not help.
    """


class EnvUnreachable(EnvError):
    """No node answered within the time for retries.

    Remedy: start a node, correct the addresses, or raise `RetryPolicy.total_seconds`.
    """


class RunStopped(BaseException):
    """A training run cannot go on: an environment is lost and its rollout can neither be finished nor scored.

    Not an `Exception`, because TRL hands every `Exception` of a tool to the model as the tool's text, and a fault of the
    machines would become training data.
    """
