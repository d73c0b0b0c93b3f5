"""SQLEnv's action, observation and state as OpenEnv's models, as in env-node's `/schema`."""

from __future__ import annotations

from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class SQLAction(Action):
    """What the agent does."""

    action_type: str = Field(..., description="One of: DESCRIBE, SAMPLE, QUERY, ANSWER")
    argument: str = Field(
        ...,
        description="Table name (DESCRIBE/SAMPLE), SQL string (QUERY), or answer value (ANSWER)",
    )


class SQLObservation(Observation):
    """What the agent sees; `done`, `reward` and `metadata` are OpenEnv's."""

    question: str = Field(..., description="The question to answer")
    schema_info: str = Field(
        ..., description="Table names; columns are added as tables are described"
    )
    result: str = Field("", description="Result of the last action; empty after an error")
    error: str = Field("", description="Error of the last action; empty after a success")
    step_count: int = Field(0, description="Actions made so far")
    budget_remaining: int = Field(0, description="Actions left")
    action_history: list[str] = Field(
        default_factory=list, description="Actions made so far, oldest first"
    )


class SQLState(State):
    """The episode's id and how many actions it has seen."""
