"""Renders observations as text for a model, with SQLEnv's sections and its limit on results.

All functions are pure. The text of a tool is the same as in this project's own actors, so a model
that one of them has trained can be used with the other.
"""

from __future__ import annotations

from .v1.env_pb2 import Observation

#: The number of characters of a result that the model sees.
MAX_RESULT_CHARS = 2_000
_TRUNCATED = "... [truncated]"


def tool_text(observation: Observation) -> str:
    """Returns the text of a tool: the result, or the error after `Error: `."""
    if observation.error:
        return _capped(f"Error: {observation.error}")
    return _capped(observation.result) or "(empty)"


def observation_text(observation: Observation) -> str:
    """Returns a whole observation. Before the first action it has no last result."""
    sections = [
        f"Question: {observation.question}",
        f"Schema:\n{observation.schema_info or '(none)'}",
    ]
    if observation.step_count > 0:
        sections.append(f"Last Result:\n{_capped(observation.result) or '(empty)'}")
    if observation.error:
        sections.append(f"Error: {_capped(observation.error)}")
    sections.append(f"Budget: {observation.budget_remaining} steps left")
    return "\n\n".join(sections)


def _capped(text: str) -> str:
    return text if len(text) <= MAX_RESULT_CHARS else text[:MAX_RESULT_CHARS] + _TRUNCATED
