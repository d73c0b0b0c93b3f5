"""Errors between this client and the env-nodes.

Errors of the agent are observations and raise nothing. These exceptions are faults of the caller or
of the infrastructure.
"""

from __future__ import annotations

import grpc


class EnvError(Exception):
    """A call to an env-node failed, or its client was closed. The episode is unchanged."""

    def __init__(self, message: str, code: grpc.StatusCode, reason: str = "") -> None:
        super().__init__(message)
        #: The status of the last attempt.
        self.code = code
        #: The machine-readable reason (`google.rpc.ErrorInfo`) of the node, or an empty text.
        self.reason = reason

    def __reduce__(self) -> tuple[type[EnvError], tuple[str, grpc.StatusCode, str]]:
        # Python would call the constructor with the message alone.
        return type(self), (str(self), self.code, self.reason)


class EnvRefused(EnvError):
    """A node refuses the call, for example for an unknown question, or all refuse the caller.

    Another attempt fails as well. The message has the remedy.
    """


class EnvUnreachable(EnvError):
    """No node responded within the time for retries.

    Remedy: start a node, correct the addresses, or raise `RetryPolicy.total_seconds`.
    """


class EnvUnserved(EnvError):
    """A node responds, but could not serve this call in many attempts. Other episodes may continue.

    `reason` says why. WALL_CLOCK: the gold SQL of the question takes longer than the limit
    `env.sql.wall_clock_seconds`. NODE_FAULT: the node failed, and its log says how.
    DATABASE_BROKEN: the node can no longer read the file of the database.
    """


class EnvDiverged(EnvError):
    """A replayed episode returned another observation than before, so it cannot continue.

    Remedy: serve the same data with the same settings on all nodes.
    """


class RunStopped(BaseException):
    """A training run must stop, because an environment is lost and its rollout cannot be scored.

    This is not an `Exception`: TRL gives the model every `Exception` of a tool as the text of the
    tool, so a fault of the infrastructure would become training data.
    """
