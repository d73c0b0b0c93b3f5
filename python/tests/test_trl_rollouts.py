"""Tests `EpisodeRollouts` without TRL, over a class with the methods of TRL that it extends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from sqlenv import EpisodeRollouts, SQLEnvTRL
from stub_node import Fault, StubNode

#: What a row says in its turns, as tokens, and after how many of them its episode is over.
TURNS = [[[1, 2], [3]], [[4]], [[5], [6], [7]]]
RESULT = [90, 91]


class Loop:
    """The parts of `GRPOTrainer` that matter: the tool loop appends results and asks again."""

    def __init__(self, environments: list[Any], logprobs: bool) -> None:
        tools = [environments[0].answer, environments[0].describe, environments[0].query]
        self.tools, self._env_tools = tools, {None: [*tools, environments[0].sample]}
        self.environments, self.has_logprobs = environments, logprobs
        self.asked: list[int] = []

    def _tokenize_prompts(self, prompts: list[str]) -> Any:
        return [[10 + row] for row, _ in enumerate(prompts)], None, {}

    def _generate_single_turn(self, prompt_ids: list[Any], images: Any, fields: Any) -> Any:
        self.asked.append(len(prompt_ids))
        turns = [TURNS[ids[0] - 10][list(ids).count(RESULT[0])] for ids in prompt_ids]
        return turns, [[-0.5] * len(turn) for turn in turns] if self.has_logprobs else None

    def _tool_call_loop(
        self, prompt_ids: list[Any], completion_ids: list[list[int]], logprobs: Any
    ) -> Any:
        mask = [[1] * len(ids) for ids in completion_ids]
        rows = list(range(len(prompt_ids)))
        while rows:
            for row in rows:
                if mask[row].count(0) // 2 + 1 == len(TURNS[row]):
                    self.environments[row].answer(value="39")
                completion_ids[row] = completion_ids[row] + RESULT
                mask[row] = mask[row] + [0, 0]
                if logprobs is not None:
                    logprobs[row] = logprobs[row] + [0.0, 0.0]
            so_far = [prompt_ids[row] + completion_ids[row] for row in rows]
            turns, following = self._generate_single_turn(so_far, None, {})
            for index, row in enumerate(rows):
                completion_ids[row] = completion_ids[row] + turns[index]
                mask[row] = mask[row] + [1] * len(turns[index])
                if logprobs is not None:
                    logprobs[row] = logprobs[row] + following[index]
            rows = [row for row, turn in zip(rows, turns, strict=True) if turn]
        return mask, ["messages"], completion_ids, logprobs, 6, 0, []

    def rollouts(self) -> Any:
        prompt_ids, images, fields = self._tokenize_prompts([""] * len(TURNS))
        turns, logprobs = self._generate_single_turn(prompt_ids, images, fields)
        return self._tool_call_loop(prompt_ids, turns, logprobs)


class Trainer(EpisodeRollouts, Loop):
    """What the README names."""


@pytest.fixture
def node(stub: Callable[..., StubNode]) -> StubNode:
    return stub()


@pytest.fixture
def environments(node: StubNode) -> list[SQLEnvTRL]:
    group = [SQLEnvTRL.configured(addresses=node.address, retry_seconds=0.0)() for _ in TURNS]
    for env in group:
        env.reset(seed=0)
    return group


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_rollout_ends_with_the_call_that_ends_its_episode(
    environments: list[SQLEnvTRL], logprobs: bool
) -> None:
    trainer = Trainer(environments, logprobs)
    mask, messages, completion_ids, sampled, *counts = trainer.rollouts()
    assert completion_ids == [[1, 2, *RESULT, 3], [4], [5, *RESULT, 6, *RESULT, 7]]
    assert mask == [[1, 1, 0, 0, 1], [1], [1, 0, 0, 1, 0, 0, 1]]
    wanted = [[-0.5 if bit else 0.0 for bit in row] for row in mask]
    assert sampled == (wanted if logprobs else None)
    assert (messages, counts) == (["messages"], [6, 0, []])
    assert trainer.asked == [3, 2, 1]
    assert [env.penalty for env in environments] == [0.0] * 3


def test_an_episode_that_is_not_over_keeps_its_last_result(environments: list[SQLEnvTRL]) -> None:
    class CutOff(Trainer):
        def _generate_single_turn(self, prompt_ids: list[Any], *others: Any, **more: Any) -> Any:
            if len(self.asked) == 1:  # TRL leaves the loop, for example at its limit of calls.
                return [[] for _ in prompt_ids], None
            return super()._generate_single_turn(prompt_ids, *others, **more)

    mask, _, completion_ids, *_ = CutOff(environments, False).rollouts()
    assert completion_ids == [[1, 2, *RESULT], [4], [5, *RESULT]]
    assert mask == [[1, 1, 0, 0], [1], [1, 0, 0]]


def test_a_rollout_ends_with_an_episode_that_a_node_cannot_serve(
    node: StubNode, environments: list[SQLEnvTRL]
) -> None:
    class LosesTheLastEpisode(Trainer):
        def _generate_single_turn(self, prompt_ids: list[Any], *others: Any, **more: Any) -> Any:
            if len(self.asked) == 1:
                node.faults = [Fault(grpc.StatusCode.UNAVAILABLE, reason="WALL_CLOCK")]
                environments[2].query(sql="SELECT 1")
            return super()._generate_single_turn(prompt_ids, *others, **more)

    trainer = LosesTheLastEpisode(environments, False)
    mask, _, completion_ids, *_ = trainer.rollouts()
    assert completion_ids == [[1, 2, *RESULT, 3], [4], [5]]
    assert mask == [[1, 1, 0, 0, 1], [1], [1]]
    assert trainer.asked == [3, 1]
    assert [env.scorable for env in environments] == [True, True, False]


def test_the_tools_are_in_the_order_of_the_actors(environments: list[SQLEnvTRL]) -> None:
    trainer = Trainer(environments, False)
    names = [tool.__name__ for tool in trainer._env_tools[None]]
    assert names == ["describe", "sample", "query", "answer"]
    assert [tool.__name__ for tool in trainer.tools] == ["describe", "query", "answer"]
