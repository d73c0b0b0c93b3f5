"""SQLEnv for verl: an agent loop in which a rollout is one episode.

Invariant: the tokens are those of this project's own actors. The model's turns are trained on, and
the prompt and the results are not. The rollout ends with its episode, and a turn without a call is
sent as a QUERY, so that the model sees what follows from it. Faults of nodes are retried inside,
and one that lasts raises an `EnvError`: verl's trainers then leave out the rollout or its group.
Needs `verl==0.9.1`, whose agent loops are experimental.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from transformers.utils import get_json_schema
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema
from verl.utils.profiler import simple_timer
from verl.utils.tokenizer.continuous_token import (
    ContinuousTokenBuilder,
    QwenContinuousTokenBuilder,
)

from .grpc_env import Episode, GrpcEnv
from .rendering import opening, question_text, tool_text
from .trl_env import Settings, SQLEnvTRL, as_text, client_of
from .trl_rollouts import TOOL_ORDER

#: The schemas of the tools, in the order of the actors' prompts.
TOOLS: list[dict[str, Any]] = [get_json_schema(getattr(SQLEnvTRL(), name)) for name in TOOL_ORDER]
_PARAMETERS = {
    tool["function"]["name"]: next(iter(tool["function"]["parameters"]["properties"]))
    for tool in TOOLS
}
#: What verl's servers count in each turn.
_COUNTERS = ("spec_num_draft_tokens", "spec_num_accepted_tokens", "spec_num_verify_steps")
#: The text of the token that ends a turn in ChatML.
_TURN_END = "<|im_end|>"


@dataclass
class _Rollout:
    """What has been sampled and shown so far."""

    #: The prompt and the response.
    tokens: list[int]
    messages: list[dict[str, Any]]
    request_id: str = field(default_factory=lambda: uuid4().hex)
    #: 1 for each token of the response that the model has sampled, else 0.
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    turns: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    #: What verl's servers add, such as the version of the weights.
    extra_fields: dict[str, Any] = field(default_factory=dict)


class _AfterTheTurn(ContinuousTokenBuilder):
    """Begins a result after the token that ends the turn, as this project's actors and TRL do.

    verl begins it after all that the template prints for the turn, and concludes from the model
    type whether a sampled turn lacks a line break there. With SmolLM2 (`llama`) it loses the line
    break. With the base policy (`qwen3`), whose template begins the result with it, it adds another
    one.
    """

    def render_delta_token_id(
        self,
        prefix_messages: list[dict[str, Any]],
        appended_messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = False,
        tools: list[dict[str, Any]] | None = None,
    ) -> list[int]:
        before: list[int] = self._render_tokens(
            prefix_messages, add_generation_prompt=False, tools=tools
        )
        whole: list[int] = self._render_tokens(
            [*prefix_messages, *appended_messages],
            add_generation_prompt=add_generation_prompt,
            tools=tools,
        )
        # The texts of tokens are compared, since a token of the base policy is the end of a call
        # together with that of the turn. Without such a token this is what verl does.
        ends = (
            end
            for end in range(len(before), 0, -1)
            if self.tokenizer.decode(before[end - 1 : end]).endswith(_TURN_END)
        )
        end = next(ends, len(before))
        if whole[:end] != before[:end]:
            raise ValueError(
                "the chat template prints a turn differently when a result follows; use a template "
                "that prints it the same"
            )
        return whole[end:]


class SQLEnvAgentLoop(AgentLoopBase):
    """Plays an episode on an env-node. A file of agent loops names it:

    - name: sqlenv
      _target_: sqlenv.verl_agent_loop.SQLEnvAgentLoop
      settings: {addresses: "http://a:8000,http://b:8000", step_budget: 10}
    """

    #: Joins turns and results.
    continuous_token_builder: Any

    def __init__(
        self,
        *arguments: Any,
        settings: Mapping[str, Any] | None = None,
        reward: str = "return",
        **others: Any,
    ) -> None:
        """Creates the loop of one rollout, as verl does.

        Args:
            settings: Fields of `Settings`. Environment variables set the others.
            reward: `return`, the sum of the rewards of the episode, or `correct`, 1 or 0.

        Raises:
            ValueError: There is no such reward.
        """
        super().__init__(*arguments, **others)
        if reward not in ("return", "correct"):
            raise ValueError(f"reward is {reward!r}; give return or correct")
        # Others of verl's builders are for formats other than ChatML, or for images.
        if type(self.continuous_token_builder) in (
            ContinuousTokenBuilder,
            QwenContinuousTokenBuilder,
        ):
            self.continuous_token_builder = _AfterTheTurn(
                self.tokenizer, chat_template_kwargs=self.apply_chat_template_kwargs
            )
        self._reward = reward
        self._settings = replace(Settings.from_environment(), **dict(settings or {}))
        tool_format = self.rollout_config.multi_turn.format
        self._parser = ToolParser.get_tool_parser(tool_format, self.tokenizer)
        self._schemas = [OpenAIFunctionToolSchema.model_validate(tool) for tool in TOOLS]
        # Only the server knows all end tokens of the model. Their texts end with special tokens.
        added = self.tokenizer.added_tokens_decoder.values()
        special = [token.content for token in added if token.special]
        self._ends = (*special, *self.tokenizer.all_special_tokens)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Plays one episode on the question that `extra_info` of the row selects.

        Raises:
            ValueError: The row selects no question.
            EnvError: No node can serve the episode.
        """
        threads = _node_threads(os.getpid())
        question = row.get("extra_info") or {}
        episode = await self.loop.run_in_executor(threads, self._reset, question)
        messages = opening()
        messages[-1]["content"] = question_text(episode.observation)
        prompt = await self.ct_build_initial_tokens(messages, tools=TOOLS)
        rollout = _Rollout(prompt, messages)
        limit = self.rollout_config.response_length
        if context := self.rollout_config.get("max_model_len"):
            # The server is asked for one turn at least, and says that the prompt is too long.
            limit = min(limit, max(1, context - len(prompt)))
        while len(rollout.mask) < limit:
            action = await self._act(rollout, sampling_params, limit)
            if action is None:
                break
            with simple_timer("tool_calls", rollout.metrics):
                await self.loop.run_in_executor(threads, episode.step, *action)
            if episode.done:
                break
            await self._show(rollout, tool_text(episode.observation))
        return self._output(rollout, episode, limit)

    def _reset(self, question: Mapping[str, Any]) -> Episode:
        client = client_of(self._settings, os.getpid())
        return client.env.reset(
            **client.question_of(question, self._settings.split),
            reward_profile=self._settings.reward_profile,
            step_budget=self._settings.step_budget,
        )

    async def _act(
        self, rollout: _Rollout, sampling_params: dict[str, Any], limit: int
    ) -> tuple[str, str] | None:
        """Samples a turn and returns its action, or None if the turn is cut off."""
        # With one token more than fits, a turn that is cut off is longer than the limit.
        sampling_params = {"max_tokens": limit - len(rollout.mask) + 1, **sampling_params}
        stop = [*(sampling_params.get("stop_token_ids") or []), *self._parser.stop_token_ids]
        if stop:
            sampling_params = {**sampling_params, "stop_token_ids": sorted(set(stop))}
        with simple_timer("generate_sequences", rollout.metrics):
            output = await self.server_manager.generate(
                request_id=rollout.request_id,
                prompt_ids=rollout.tokens,
                sampling_params=sampling_params,
            )
        _count(rollout, output)
        if not output.token_ids:
            return None
        if output.log_probs and rollout.logprobs is None:
            rollout.logprobs = [0.0] * len(rollout.mask)
        merged, rollout.mask, rollout.logprobs = await self.ct_merge_assistant_token(
            rollout.tokens,
            output.token_ids,
            rollout.mask,
            rollout.logprobs,
            assistant_logprobs=output.log_probs or None,
        )
        rollout.tokens = merged.token_ids
        is_ended = self._is_ended(output.token_ids, sampling_params)
        # A server whose context is full gives fewer tokens than it is asked for.
        is_short = len(output.token_ids) < sampling_params["max_tokens"]
        room = limit - len(rollout.mask)
        if room < 0 or (not is_ended and (is_short or room == 0)):
            return None
        content, calls = await self._parser.extract_tool_calls(output.token_ids, self._schemas)
        rollout.messages.append(_message(content, calls[:1]))
        text = self.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        return action_of(calls, text.rstrip())

    def _is_ended(self, turn: list[int], sampling_params: Mapping[str, Any]) -> bool:
        """Returns whether a turn ends at an end token or at a text where the server stops."""
        stop_texts = sampling_params.get("stop") or []
        if isinstance(stop_texts, str):
            stop_texts = [stop_texts]
        if stop_texts and any(text in self.tokenizer.decode(turn) for text in stop_texts):
            return True
        stop_tokens = sampling_params.get("stop_token_ids") or []
        return turn[-1] in stop_tokens or self.tokenizer.decode(turn[-1:]).endswith(self._ends)

    async def _show(self, rollout: _Rollout, result: str) -> None:
        """Appends the result of an action."""
        before = list(rollout.messages)
        rollout.messages.append({"role": "tool", "content": result})
        merged, rollout.mask, rollout.logprobs = await self.ct_merge_context_msg(
            before, rollout.messages, rollout.tokens, rollout.mask, rollout.logprobs, tools=TOOLS
        )
        rollout.tokens = merged.token_ids

    def _output(self, rollout: _Rollout, episode: Episode, limit: int) -> AgentLoopOutput:
        response = len(rollout.tokens) - len(rollout.mask)
        correct = 1.0 if episode.correct else 0.0
        return AgentLoopOutput(
            prompt_ids=rollout.tokens[:response],
            response_ids=rollout.tokens[response:][:limit],
            response_mask=rollout.mask[:limit],
            response_logprobs=rollout.logprobs and rollout.logprobs[:limit],
            reward_score=correct if self._reward == "correct" else episode.episode_return,
            num_turns=2 * rollout.turns,
            metrics=rollout.metrics,
            extra_fields={
                **rollout.extra_fields,
                "turn_scores": [],
                "tool_rewards": [],
                "reward_extra_info": {"acc": correct},
            },
        )


def action_of(calls: Sequence[FunctionCall], text: str) -> tuple[str, str]:
    """Returns the action of a turn: that of its first call, or its text as a QUERY."""
    name = calls[0].name.strip().lower() if calls else ""
    if name not in _PARAMETERS:
        return "QUERY", as_text(text)
    arguments = _loads(calls[0].arguments)
    # Some models write the arguments object as a JSON string.
    if isinstance(arguments, str) and isinstance(nested := _loads(arguments), dict):
        arguments = nested
    if isinstance(arguments, dict):
        arguments = arguments.get(_PARAMETERS[name])
    return name.upper(), as_text(arguments)


def dataset_rows(env: GrpcEnv, split: str) -> list[dict[str, Any]]:
    """Returns the rows of a dataset for verl: a question each, without its answer.

    `run` renders the prompt itself. That of a row is there because verl's dataset requires one.
    """
    return [
        {
            "data_source": "sqlenv",
            "agent_name": "sqlenv",
            "prompt": [opening()[0], {"role": "user", "content": question.question_text}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index, "question_id": question.question_id},
        }
        for index, question in enumerate(env.list_questions(split=split))
    ]


@functools.cache
def _node_threads(process_id: int) -> ThreadPoolExecutor:
    """Returns the threads that call nodes. Each process has its own, because of forks.

    The loop's own threads are few, and verl tokenizes in them. While no node responds, each call
    holds its thread for `retry_seconds`, and a rollout without a thread only begins to wait then.
    """
    return ThreadPoolExecutor(256, thread_name_prefix="sqlenv-node")


def _loads(text: str) -> Any:
    """Returns the value of a JSON text, or the text if it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _message(content: str | None, calls: Sequence[FunctionCall]) -> dict[str, Any]:
    """Returns a turn as a message, from which verl renders what follows it."""
    message: dict[str, Any] = {"role": "assistant", "content": content or ""}
    if calls:
        functions = [{"name": it.name, "arguments": _loads(it.arguments)} for it in calls]
        message["tool_calls"] = [{"type": "function", "function": it} for it in functions]
    return message


def _count(rollout: _Rollout, output: Any) -> None:
    """Notes what verl reports about a rollout of several turns."""
    rollout.turns += 1
    preempted = -1 if output.num_preempted is None else output.num_preempted
    if rollout.turns == 1:
        rollout.metrics["num_preempted"] = preempted
        rollout.extra_fields.update(output.extra_fields)
        return
    rollout.metrics["num_preempted"] += max(preempted, 0)
    if newest := output.extra_fields.get("max_global_steps"):
        rollout.extra_fields["max_global_steps"] = newest
    for counter in _COUNTERS:
        if counter in output.extra_fields:
            before = rollout.extra_fields.get(counter, 0)
            rollout.extra_fields[counter] = before + output.extra_fields[counter]
