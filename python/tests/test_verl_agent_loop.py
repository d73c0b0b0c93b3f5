"""Tests that an episode in verl's agent loop has the tokens of this project's own actors.

Opt-in by SQLENV_TEST_VERL=1, since torch is large: needs `verl[verl-core]==0.9.1` and `torch`.
verl's base class is the real one, and a server takes the place of vLLM's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from real_node import RealNode
from real_run import STEP_BUDGET, trajectories
from sqlenv import EnvUnserved, Episode, GrpcEnv
from sqlenv.rendering import opening
from stub_node import QUESTION, SCHEMA, StubNode

if os.environ.get("SQLENV_TEST_VERL") != "1":
    pytest.skip(
        "verl's agent loop is not tested; SQLENV_TEST_VERL=1 does, where verl and torch are "
        "installed",
        allow_module_level=True,
    )

import hydra
from omegaconf import OmegaConf
from sqlenv.verl_agent_loop import TOOLS, action_of, dataset_rows
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.workers.rollout.replica import TokenOutput

POLICY = Path(__file__).parents[2] / "policy"
EMBEDDED = POLICY / "embedded"
RESPONSE_TOKENS = 1_800


class ActorsModel:
    """A server whose model says what an actor has sampled."""

    def __init__(self, episode: dict[str, Any], context: int = 1 << 20) -> None:
        (self.segment,) = episode["segments"]
        self.context = context

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> TokenOutput:
        # The tokens so far must begin the actor's, of which the next sampled ones follow.
        tokens, mask = self.segment["tokens"], self.segment["mask"]
        begin = len(prompt_ids)
        assert begin < self.context
        assert prompt_ids == tokens[:begin]
        assert mask[begin] == 1
        end = mask.index(0, begin) if 0 in mask[begin:] else len(mask)
        end = min(end, begin + sampling_params["max_tokens"], self.context)
        logprobs = self.segment["logprobs"][begin:end]
        return TokenOutput(token_ids=tokens[begin:end], log_probs=logprobs)


class StopsAtText(ActorsModel):
    """Says one turn without its last token, at whose text the server stops, and then nothing."""

    turns = 0

    async def generate(self, *arguments: Any, **given: Any) -> TokenOutput:
        whole = await super().generate(*arguments, **given) if self.turns == 0 else None
        self.turns += 1
        return TokenOutput(token_ids=whole.token_ids[:-1] if whole else [])


class SaysTurns:
    """Says these turns, and then nothing."""

    def __init__(self, *turns: list[int]) -> None:
        self.turns = list(turns)

    async def generate(self, *_: Any, **__: Any) -> TokenOutput:
        return TokenOutput(token_ids=self.turns.pop(0) if self.turns else [])


def play(server: Any, address: str, question: dict[str, Any], **given: Any) -> AgentLoopOutput:
    """Plays an episode."""
    return asyncio.run(rollout_of(server, address, question, **given))


async def rollout_of(
    server: Any, address: str, question: dict[str, Any], **given: Any
) -> AgentLoopOutput:
    """Plays an episode as verl does, by an entry of a file of agent loops."""
    sampling = given.pop("sampling", {})
    tokenizer = given.pop("tokenizer", None) or AutoTokenizer.from_pretrained(EMBEDDED)
    model_type = given.pop("model_type", "qwen3")
    rollout = {
        "prompt_length": 4_096,
        "response_length": given.pop("response_length", RESPONSE_TOKENS),
        "max_model_len": given.pop("max_model_len", None),
        "multi_turn": {"format": "hermes"},
    }
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    entry = OmegaConf.create(
        {
            "name": "sqlenv",
            "_target_": "sqlenv.verl_agent_loop.SQLEnvAgentLoop",
            "settings": {"addresses": address, "step_budget": STEP_BUDGET},
            **given,
        }
    )

    loop = hydra.utils.instantiate(
        config=entry,
        trainer_config=DictConfigWrap(config),
        server_manager=server,
        tokenizer=tokenizer,
        processor=None,
        hf_model_type=model_type,
        dataset_cls=None,
        data_config=DictConfigWrap(config.data),
        tools=None,
    )
    row = {"raw_prompt": [], "extra_info": question, "index": 0, "priority": 3}
    return await loop.run({"temperature": 1.0, **sampling}, **row)


def smollm2(after_turn: str = r"<|im_end|>\n") -> PreTrainedTokenizerFast:
    """Returns a tokenizer of bytes with SmolLM2's template, to which this project adds the tools.

    `after_turn` is what the template prints after a turn.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: index for index, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    eos_token = after_turn.removesuffix(r"\n")
    found = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos_token)
    found.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    prelude = (POLICY / "src/chat/tool_prelude.jinja").read_text(encoding="utf-8").rstrip()
    chatml = POLICY / "tests/golden/chat/templates/smollm2_chatml.jinja"
    turns = chatml.read_text(encoding="utf-8").replace(r"<|im_end|>' + '\n'", f"{after_turn}'")
    found.chat_template = f"{prelude}\n{turns}"
    return found


@pytest.fixture
def episodes(binary: Path, real_run: Path) -> list[dict[str, Any]]:
    """The episodes of a short run, each of which fits into one segment."""
    found = [it for it in trajectories(binary, real_run) if len(it["segments"]) == 1]
    assert len(found) >= 4
    return found


def test_an_episode_has_the_tokens_and_the_reward_of_an_actor(
    episodes: list[dict[str, Any]], real_node: Callable[[], RealNode]
) -> None:
    address = real_node().address
    for episode in episodes:
        question = {"index": 7, "question_id": episode["question_id"]}
        output = play(ActorsModel(episode), address, question)
        segment = episode["segments"][0]
        assert output.prompt_ids + output.response_ids == segment["tokens"]
        assert [0] * len(output.prompt_ids) + output.response_mask == segment["mask"]
        sampled = segment["logprobs"][len(output.prompt_ids) :]
        assert output.response_logprobs == pytest.approx(sampled)
        assert output.reward_score == pytest.approx(episode["return"])
        assert output.extra_fields["reward_extra_info"] == {"acc": float(episode["correct"])}
        turns = sum(message["role"] == "assistant" for message in episode["messages"])
        assert output.num_turns == 2 * turns
        correct = play(ActorsModel(episode), address, question, reward="correct")
        assert correct.reward_score == float(episode["correct"])
    assert {it["correct"] for it in episodes} == {True, False}


@pytest.mark.parametrize(
    ("model_type", "tokenizer", "turn_end"),
    [
        ("qwen3", lambda: AutoTokenizer.from_pretrained(EMBEDDED), "<|im_end|>"),
        ("qwen2", smollm2, "<|im_end|>"),
        ("llama", smollm2, "<|im_end|>"),
        # Another end of a turn, after which verl's rule holds.
        ("llama", lambda: smollm2("<|eot_id|>"), "<|eot_id|>"),
    ],
)
def test_a_result_follows_a_turn_as_in_the_template(
    stub: Callable[..., StubNode], model_type: str, tokenizer: Callable[[], Any], turn_end: str
) -> None:
    model = tokenizer()
    call = '<tool_call>\n{"name": "query", "arguments": {"sql": "SELECT 1"}}\n</tool_call>'
    # The end of the malformed turn is a token of its own, that of a call in the base policy is not.
    exchanges = [("bad", "Error: SQL error: bad"), (call, "1. SELECT 1")]
    turns = [model.encode(turn + turn_end, add_special_tokens=False) for turn, _ in exchanges]
    output = play(
        SaysTurns(*turns),
        stub().address,
        {"question_id": "cars_0000"},
        tokenizer=model,
        model_type=model_type,
    )
    messages = opening()
    messages[-1]["content"] = f"{QUESTION}\n{SCHEMA}"
    for turn, result in exchanges:
        messages.append({"role": "assistant", "content": turn})
        messages.append({"role": "tool", "content": result})
    whole = model.apply_chat_template(
        messages, tools=TOOLS, add_generation_prompt=True, return_dict=False
    )
    assert output.prompt_ids + output.response_ids == whole
    assert sum(output.response_mask) == sum(map(len, turns))


def test_rollouts_wait_for_nodes_at_the_same_time(
    stub: Callable[..., StubNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The threads that an event loop has by itself are 32 at most, with which the barrier breaks.
    barrier = threading.Barrier(33, timeout=20)
    reset = GrpcEnv.reset

    def reset_together(self: GrpcEnv, **given: Any) -> Episode:
        barrier.wait()
        return reset(self, **given)

    def step_together(*_: Any) -> None:
        barrier.wait()
        raise EnvUnserved("no node responds", grpc.StatusCode.UNAVAILABLE, "NODE_FAULT")

    monkeypatch.setattr(GrpcEnv, "reset", reset_together)
    monkeypatch.setattr(Episode, "step", step_together)
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    turn = tokenizer.encode("SELECT 1<|im_end|>")
    address = stub().address

    async def run() -> list[Any]:
        question = {"question_id": "cars_0000"}
        rollouts = [
            rollout_of(SaysTurns(turn), address, question, tokenizer=tokenizer)
            for _ in range(barrier.parties)
        ]
        return await asyncio.gather(*rollouts, return_exceptions=True)

    assert [type(it) for it in asyncio.run(run())] == [EnvUnserved] * barrier.parties


def test_an_action_that_is_cut_off_is_not_taken(
    episodes: list[dict[str, Any]],
    real_node: Callable[[], RealNode],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actions: list[str] = []
    step = Episode.step
    monkeypatch.setattr(
        Episode,
        "step",
        lambda self, kind, argument: (actions.append(kind), step(self, kind, argument))[1],
    )
    episode = next(it for it in episodes if it["correct"])
    question = {"question_id": episode["question_id"]}
    address = real_node().address
    whole = play(ActorsModel(episode), address, question)
    assert actions[-1] == "ANSWER"
    taken = len(actions)
    actions.clear()
    limit = len(whole.response_ids) - 1
    cut = play(ActorsModel(episode), address, question, response_length=limit)
    assert len(actions) == taken - 1
    assert cut.response_ids == whole.response_ids[:limit]
    assert len(cut.response_mask) == len(cut.response_logprobs or []) == limit
    assert cut.extra_fields["reward_extra_info"] == {"acc": 0.0}
    # The context of the second server is full, which the loop is not told.
    context = len(whole.prompt_ids) + 3
    for server, limit in [
        (ActorsModel(episode), 3),
        (ActorsModel(episode, context), 3),
        (ActorsModel(episode, context), RESPONSE_TOKENS),
    ]:
        actions.clear()
        assert len(play(server, address, question, response_length=limit).response_ids) == 3
        assert actions == []
    # The result of the first action fills the context.
    limit = whole.response_mask.index(0) + 1
    context = len(whole.prompt_ids) + limit
    model = ActorsModel(episode, context)
    full = play(model, address, question, max_model_len=context)
    assert full.response_ids == whole.response_ids[:limit]
    assert len(actions) == 1


@pytest.mark.parametrize("as_stop", [str, lambda text: ["\n\n", text]])
def test_a_turn_may_end_at_a_text(
    episodes: list[dict[str, Any]],
    real_node: Callable[[], RealNode],
    monkeypatch: pytest.MonkeyPatch,
    as_stop: Callable[[str], Any],
) -> None:
    actions: list[tuple[str, str]] = []
    monkeypatch.setattr(Episode, "step", lambda _, *action: actions.append(action))
    episode = episodes[0]
    question = {"question_id": episode["question_id"]}
    address = real_node().address
    cut = play(StopsAtText(episode), address, question)
    assert actions == []
    text = AutoTokenizer.from_pretrained(EMBEDDED).decode(cut.response_ids)
    for stop, taken in [("a text that does not occur", []), (text[-4:], [("QUERY", text)])]:
        play(StopsAtText(episode), address, question, sampling={"stop": as_stop(stop)})
        assert actions == taken


def test_a_fault_of_the_environment_leaves_the_loop(
    episodes: list[dict[str, Any]],
    real_node: Callable[[], RealNode],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unserved(*_: Any) -> None:
        raise EnvUnserved("the gold SQL takes too long", grpc.StatusCode.UNAVAILABLE, "WALL_CLOCK")

    monkeypatch.setattr(Episode, "step", unserved)
    question = {"question_id": episodes[0]["question_id"]}
    with pytest.raises(EnvUnserved, match="too long"):
        play(ActorsModel(episodes[0]), real_node().address, question)


def test_a_row_selects_its_question(real_node: Callable[[], RealNode]) -> None:
    address = real_node().address
    with GrpcEnv(address) as env:
        rows = dataset_rows(env, "eval")
        assert len(rows) == len(list(env.list_questions(split="eval")))
    assert rows[0]["agent_name"] == "sqlenv"
    with pytest.raises(ValueError, match="selects no question"):
        play(None, address, {})
    with pytest.raises(Exception, match="give return or correct"):
        play(None, address, rows[0]["extra_info"], reward="both")


@pytest.mark.parametrize(
    ("name", "arguments", "action"),
    [
        ("query", '{"sql": "SELECT 1"}', ("QUERY", "SELECT 1")),
        (" Describe", '{"table_name": "t", "more": 1}', ("DESCRIBE", "t")),
        ("answer", '{"value": [["a", 1], ["b", null]]}', ("ANSWER", "a | 1\nb | ")),
        ("answer", '"{\\"value\\": 7}"', ("ANSWER", "7")),
        ("answer", '"7"', ("ANSWER", "7")),
        ("answer", "{}", ("ANSWER", "")),
        ("sample", "not JSON", ("SAMPLE", "not JSON")),
        ("drop", '{"table_name": "t"}', ("QUERY", "the text")),
    ],
)
def test_the_first_call_is_the_action(name: str, arguments: str, action: tuple[str, str]) -> None:
    calls = [FunctionCall(name=name, arguments=arguments)]
    assert action_of([*calls, FunctionCall(name="query", arguments="{}")], "the text") == action
    assert action_of([], "the text") == ("QUERY", "the text")
