"""Makes the rollouts of TRL's `GRPOTrainer` agree with those of this project's own actors.

`GRPOTrainer` asks the model for another turn after the answer, and trains on what it says there. It
also lists the tools of an environment by their names. `EpisodeRollouts` ends a rollout with its
episode, and lists the tools in the order of the actors' prompts. It imports no TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from .trl_env import SQLEnvTRL

#: The tools in the order of the actors' prompts.
TOOL_ORDER = ("describe", "sample", "query", "answer")


class EpisodeRollouts:
    """A mixin for `GRPOTrainer`, which must come after it in the list of bases.

    It extends private methods of TRL 1.16, since TRL has no public way to end a rollout. A rollout
    whose episode is over gets an empty turn, with which TRL's tool loop leaves it. The result of
    its last call is cut off, as actors do, so that the rollout ends with the end of a turn and
    counts as complete.

    Example:
        class Trainer(EpisodeRollouts, GRPOTrainer): ...
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        trainer = cast(Any, self)
        trainer.tools = in_order(trainer.tools)
        trainer._env_tools = {
            name: in_order(tools) for name, tools in getattr(trainer, "_env_tools", {}).items()
        }

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        prompt_ids, *others = cast(Any, super())._tokenize_prompts(prompts)
        return ([_RowTokens(ids, row) for row, ids in enumerate(prompt_ids)], *others)

    def _tool_call_loop(self, *arguments: Any, **settings: Any) -> Any:
        tool_mask, completions, completion_ids, logprobs, *others = cast(
            Any, super()
        )._tool_call_loop(*arguments, **settings)
        environments = getattr(self, "environments", None) or []
        for row, mask in enumerate(tool_mask):
            if _is_over(row, environments):
                sampled = len(mask) - next((i for i, m in enumerate(reversed(mask)) if m), 0)
                for tokens in (tool_mask, completion_ids, logprobs):
                    if tokens is not None:
                        tokens[row] = tokens[row][:sampled]
        return (tool_mask, completions, completion_ids, logprobs, *others)

    def _generate_single_turn(self, prompt_ids: list[Any], *arguments: Any, **settings: Any) -> Any:
        environments = getattr(self, "environments", None) or []
        live = [not _is_over(getattr(ids, "row", None), environments) for ids in prompt_ids]
        generate = cast(Any, super())._generate_single_turn
        if all(live):
            return generate(prompt_ids, *arguments, **settings)
        asked = [ids for ids, lives in zip(prompt_ids, live, strict=True) if lives]
        turns, logprobs = generate(asked, *arguments, **settings) if asked else ([], [])
        return _spread(turns, live), None if logprobs is None else _spread(logprobs, live)


class _RowTokens(list[int]):
    """The tokens of a rollout so far, with its row in the batch. Appending keeps the row."""

    def __init__(self, ids: Sequence[int], row: int) -> None:
        super().__init__(ids)
        self.row = row

    def __add__(self, other: Any) -> Any:
        return _RowTokens([*self, *other], self.row)


def in_order(tools: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """Returns the tools in the order of the actors' prompts, others before them."""
    names = {name: place for place, name in enumerate(TOOL_ORDER)}
    return sorted(tools, key=lambda tool: names.get(tool.__name__, -1))


def _is_over(row: int | None, environments: Sequence[object]) -> bool:
    environment = environments[row] if row is not None and row < len(environments) else None
    return isinstance(environment, SQLEnvTRL) and environment.is_over


def _spread(values: Sequence[list[Any]], live: Sequence[bool]) -> list[list[Any]]:
    """Returns the values of the live rows in their places, and empty lists in the others."""
    following = iter(values)
    return [next(following) if lives else [] for lives in live]
