"""Observations as text for a model: SQLEnv's sections and its limit on results, word for word.

Pure. The tool text is the one that this project's own actors show: a model trained by one can be played by the other.
"""

from __future__ import annotations

from .v1.env_pb2 import Observation

#: Characters of a result that the model is shown.
MAX_RESULT_CHARS = 2_000
_TRUNCATED = "... [truncated]"


def tool_text(observation: Observation) -> str:
    """What a tool answers: the result, or the error after `Error: `."""
    if observation.error:
        return _capped(f"Error: {observation.error}")
    return _capped(observation.result) or "(empty)"


def observation_text(observation: Observation) -> str:
    """An observation in full; the last result is left out where no action was made yet."""
    sections = [f"Question: {observation.question}", f"Schema:\n{observation.schema_info or '(none)'}"]
    if observation.step_count > 0:
        sections.append(f"Last Result:\n{_capped(observation.result) or '(empty)'}")
    if observation.error:
        sections.append(f"Error: {_capped(observation.error)}")
    sections.append(f"Budget: {observation.budget_remaining} steps left")
    return "\n\n".join(sections)


def _capped(text: str) -> str:
    return text if len(text) <= MAX_RESULT_CHARS else text[:MAX_RESULT_CHARS] + _TRUNCATED
