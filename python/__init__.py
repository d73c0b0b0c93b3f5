"""Clients of `sqlenv`'s environment, in which language models explore SQL databases.

`GrpcEnv` serves any trainer, `SQLEnvTRL` serves TRL, and `SQLEnv` serves OpenEnv. OpenEnv is
imported only when `SQLEnv` is used, because its import takes seconds and gRPC users do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .channels import Security
from .errors import (
    EnvDiverged,
    EnvError,
    EnvRefused,
    EnvUnreachable,
    EnvUnserved,
    RunStopped,
)
from .grpc_env import Episode, GrpcEnv
from .policy import EvaluationResult, Policy, evaluate, random_policy
from .retry import RetryPolicy
from .trl_env import Settings, SQLEnvTRL, SQLEnvTRLScored
from .trl_rollouts import EpisodeRollouts

if TYPE_CHECKING:
    from .client import SQLEnv as SQLEnv
    from .models import SQLAction as SQLAction
    from .models import SQLObservation as SQLObservation
    from .models import SQLState as SQLState

# Without the names of `_OPENENV`, so that `from sqlenv import *` does not need OpenEnv.
__all__ = [
    "EnvDiverged",
    "EnvError",
    "EnvRefused",
    "EnvUnreachable",
    "EnvUnserved",
    "Episode",
    "EpisodeRollouts",
    "EvaluationResult",
    "GrpcEnv",
    "Policy",
    "RetryPolicy",
    "RunStopped",
    "SQLEnvTRL",
    "SQLEnvTRLScored",
    "Security",
    "Settings",
    "evaluate",
    "random_policy",
]

_OPENENV = {
    "SQLEnv": "client",
    "SQLAction": "models",
    "SQLObservation": "models",
    "SQLState": "models",
}


def __getattr__(name: str) -> Any:
    if name not in _OPENENV:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_OPENENV[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_OPENENV]
