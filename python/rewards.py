"""SQLEnv's three layers of reward as reward functions for TRL; their sum is the episode's return.

Pure. Invariant: None, which TRL leaves out, stands for a rollout that cannot be scored, and never 0.0, which would teach.
They read `environments`, which `GRPOTrainer` passes; for asynchronous GRPO see `SQLEnvTRLScored`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .grpc_env import Episode
from .trl_env import SQLEnvTRL


def correctness(environments: Sequence[object], **columns: object) -> list[float | None]:
    """1.0 for a right answer; 0.0 for a wrong one and for none."""
    return _score(environments, lambda episode, _: 1.0 if episode.correct else 0.0)


def progress(environments: Sequence[object], **columns: object) -> list[float | None]:
    """How much closer to the gold rows the queries came, summed over the episode."""
    return _score(environments, lambda episode, _: episode.rewards.progress)


def operational(environments: Sequence[object], **columns: object) -> list[float | None]:
    """Execution, new information, repeats and step cost, what clipping took, and -0.1 for each call after the end."""
    return _score(environments, lambda episode, penalty: episode.rewards.operational + episode.rewards.clip + penalty)


def _score(environments: Sequence[object], of: Callable[[Episode, float], float]) -> list[float | None]:
    return [
        of(environment.episode, environment.penalty)
        if isinstance(environment, SQLEnvTRL) and environment.episode is not None and environment.scorable
        else None
        for environment in environments
    ]
