"""SQLEnv over OpenEnv's WebSocket protocol.

OpenEnv implements connections and sync and async use. One connection is one session and ends with
its node. Trainers that must continue after the loss of a node use `GrpcEnv`.
"""

from __future__ import annotations

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult

from .models import SQLAction, SQLObservation, SQLState


class SQLEnv(EnvClient[SQLAction, SQLObservation, SQLState]):
    """A client of the OpenEnv protocol of an env-node.

    Example:
        with SQLEnv("http://127.0.0.1:8000").sync() as env:
            env.reset(seed=7)
            count = SQLAction(action_type="QUERY", argument="SELECT count(*) FROM airports")
            result = env.step(count)
            print(result.observation.result, result.reward, env.state().step_count)
    """

    def _step_payload(self, action: SQLAction) -> dict[str, Any]:
        payload: dict[str, Any] = action.model_dump()
        return payload

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[SQLObservation]:
        observation = dict(payload.get("observation", {}))
        reward, done = payload.get("reward"), payload.get("done", False)
        # The metadata is in the observation, beside it, or absent, depending on the protocol
        # version.
        observation.setdefault("metadata", payload.get("metadata") or {})
        seen = SQLObservation(**observation, reward=reward, done=done)
        result = StepResult(observation=seen, reward=reward, done=done)
        if hasattr(result, "metadata"):  # OpenEnv 0.2 does not have it.
            result.metadata = seen.metadata
        return result

    def _parse_state(self, payload: dict[str, Any]) -> SQLState:
        return SQLState(**payload)
