"""SQLEnv's three layers of reward for TRL. Their sum is the return of the episode.

All functions are pure. Invariant: a rollout that cannot be scored has the reward None, which TRL
ignores. The reward 0.0 would train the model. The functions read `environments`, which
`GRPOTrainer` passes. Asynchronous GRPO uses `SQLEnvTRLScored` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .grpc_env import Episode
from .trl_env import SQLEnvTRL


def correctness(environments: Sequence[object], **columns: object) -> list[float | None]:
    """Returns 1.0 for a correct answer, and 0.0 for a wrong answer or none."""
    return _score(environments, lambda episode, _: 1.0 if episode.correct else 0.0)


def progress(environments: Sequence[object], **columns: object) -> list[float | None]:
    """Returns the progress of the queries towards the gold rows, summed over the episode."""
    return _score(environments, lambda episode, _: episode.rewards.progress)


def operational(environments: Sequence[object], **columns: object) -> list[float | None]:
    """Returns the rewards for execution, new information, repeats and steps, the effect of
    clipping, and -0.1 for each call after the end.
    """
    return _score(
        environments,
        lambda episode, penalty: episode.rewards.operational + episode.rewards.clip + penalty,
    )


def _score(
    environments: Sequence[object], of: Callable[[Episode, float], float]
) -> list[float | None]:
    return [
        of(environment.episode, environment.penalty)
        if isinstance(environment, SQLEnvTRL)
        and environment.episode is not None
        and environment.scorable
        else None
        for environment in environments
    ]
