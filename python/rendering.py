"""Renders an episode as text for a model, byte for byte as this project's own actors do.

All functions are pure. A model that an actor or TRL has trained can therefore be used with the
other. `tests/test_prompts.py` holds both renderings against each other.
"""

from __future__ import annotations

from .v1.env_pb2 import Observation

#: The number of characters of a result that the model sees.
MAX_RESULT_CHARS = 2_000
_TRUNCATED = "... [truncated]"

#: The system message of every episode.
SYSTEM_PROMPT = (
    "Answer the question about the SQL database. Use only the tools, one call per turn: describe "
    "the tables you need, run a query, then answer. Give the answer as a single value, as a "
    "comma-separated list, as rows written col1 | col2, or as [] when there is nothing."
)


def opening() -> list[dict[str, str]]:
    """Returns the column `prompt` of a row for TRL: the messages before the first completion.

    `SQLEnvTRL.reset` supplies the text of the last message.
    """
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": ""}]


def question_text(observation: Observation) -> str:
    """Returns the message with which an episode begins: the question and the tables."""
    return f"{observation.question}\n{observation.schema_info}"


def tool_text(observation: Observation) -> str:
    """Returns the text of a tool: the result, or the error after `Error: `."""
    if observation.error:
        return _capped(f"Error: {observation.error}")
    return _capped(observation.result) or "(empty)"


def _capped(text: str) -> str:
    return text if len(text) <= MAX_RESULT_CHARS else text[:MAX_RESULT_CHARS] + _TRUNCATED
