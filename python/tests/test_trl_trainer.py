"""Tests `SQLEnvTRL` in TRL's own trainer: tool schemas, parser, tool loop, rewards.

Opt-in by SQLENV_TEST_TRL=1, since torch is large: needs `trl==1.16.0`, `transformers`, `torch`. The
model is tiny and random; as it would hardly ever write a tool call, its words are put in its mouth,
and everything around them is TRL's.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from real_node import RealNode
from sqlenv import RunStopped, SQLEnvTRL, SQLEnvTRLScored
from sqlenv.rewards import correctness, operational, progress
from stub_node import Fault, StubNode

if os.environ.get("SQLENV_TEST_TRL") != "1":
    pytest.skip(
        "TRL's trainer is not tested; SQLENV_TEST_TRL=1 does, where trl and torch are installed",
        allow_module_level=True,
    )

from datasets import Dataset
from tiny_qwen3 import write_model
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

Stub = Callable[..., StubNode]
EXAMPLE = Path(__file__).parents[1] / "examples/grpo_with_trl.py"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 with a few thousand weights. Its tokens are bytes and Qwen3's markers."""
    folder = tmp_path_factory.mktemp("tiny-qwen3")
    write_model(folder)
    return folder


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


#: The even members are right; the odd ones err, guess, and go on after the end.
EVEN = [
    call("describe", table_name="cars", sql=None),
    call("query", sql="SELECT 1"),
    call("answer", value=39),
    "So.",
]
ODD = [
    call("query", sql="bad"),
    call("answer", value="0"),
    call("sample", table_name="cars"),
    "So.",
]


class ScriptedTrainer(GRPOTrainer):
    """A `GRPOTrainer` whose model follows a script."""

    said: list[list[dict[str, Any]]]

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *_: Any, **__: Any
    ) -> tuple[list[list[int]], None]:
        completions = []
        for index, ids in enumerate(prompt_ids):
            turns = self.processing_class.decode(ids).split("<|im_start|>assistant\n")
            spoken = [turn for turn in turns[1:] if turn.strip() and "<tool_call>" in turn]
            script = (
                (EVEN, ODD)[index % 2] if not spoken else EVEN if "describe" in spoken[0] else ODD
            )
            words = script[len(spoken)] + "<|im_end|>"
            completions.append(self.processing_class(words, add_special_tokens=False)["input_ids"])
        return completions, None

    def _tool_call_loop(self, *arguments: Any) -> Any:
        result = super()._tool_call_loop(*arguments)
        self.said = result[1]
        return result


def trainer_for(
    kind: type[GRPOTrainer], model: Path, folder: Path, factory: Any, **settings: Any
) -> GRPOTrainer:
    rows = [
        {"prompt": [{"role": "user", "content": "Use the tools."}], "seed": seed} for seed in (0, 1)
    ]
    arguments = {
        "max_steps": 1,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "max_completion_length": 2_000,
    }
    return kind(
        model=str(model),
        train_dataset=Dataset.from_list(rows),
        environment_factory=factory,
        args=GRPOConfig(
            output_dir=str(folder),
            logging_steps=1,
            report_to="none",
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            chat_template_kwargs={"enable_thinking": False},
            **arguments,
        ),
        **settings,
    )


def test_the_schemas_are_those_of_four_text_tools() -> None:
    env = SQLEnvTRL()
    parameters = {}
    for method in (env.describe, env.sample, env.query, env.answer):
        schema = get_json_schema(method)["function"]
        assert schema["description"]
        parameters[schema["name"]] = schema["parameters"]
    one = {"describe": "table_name", "sample": "table_name", "query": "sql", "answer": "value"}
    for name, parameter in one.items():
        assert parameters[name]["required"] == [parameter]
        assert list(parameters[name]["properties"]) == [parameter]
        assert parameters[name]["properties"][parameter]["type"] == "string"
        assert parameters[name]["properties"][parameter]["description"]


def test_the_tool_loop_plays_episodes_and_pays_rewards(
    stub: Stub, model_folder: Path, tmp_path: Path
) -> None:
    factory = SQLEnvTRL.configured(addresses=stub().address, step_budget=10)
    rewards = [correctness, progress, operational]
    trainer = trainer_for(ScriptedTrainer, model_folder, tmp_path, factory, reward_funcs=rewards)
    trainer.train()
    texts = [
        [message["content"] for message in completion if message["role"] == "tool"]
        for completion in trainer.said
    ]
    even = ["1. cars", "1. SELECT 1", "Answer submitted: correct."]
    odd = ["Error: SQL error: bad", "Answer submitted: incorrect.", "Error: Episode is over."]
    assert texts == [even, odd] * 2
    (log,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert log["rewards/correctness/mean"] == pytest.approx(0.5)
    assert log["rewards/progress/mean"] == pytest.approx((0.3 + 0.0) / 2)
    assert log["rewards/operational/mean"] == pytest.approx((0.0 + (-0.02 - 0.1)) / 2, abs=1e-6)
    assert log["tools/failure_frequency"] == 0.0
    assert log["tools/call_frequency"] == pytest.approx(3.0)


def test_an_environment_can_own_its_reward(stub: Stub, model_folder: Path, tmp_path: Path) -> None:
    factory = SQLEnvTRLScored.configured(addresses=stub().address, step_budget=10)
    trainer = trainer_for(ScriptedTrainer, model_folder, tmp_path, factory)
    trainer.train()
    (log,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert log["rewards/SQLEnvTRLScored/mean"] == pytest.approx((1.3 - 0.12) / 2)


def test_a_lost_node_stops_the_run_and_its_words_reach_no_model(
    stub: Stub, model_folder: Path, tmp_path: Path
) -> None:
    node = stub()

    class LosesItsNode(ScriptedTrainer):
        def _tool_call_loop(self, *arguments: Any) -> Any:
            node.faults = [Fault(grpc.StatusCode.UNAVAILABLE)] * 10_000
            return super()._tool_call_loop(*arguments)

    factory = SQLEnvTRL.configured(addresses=node.address, retry_seconds=0.2)
    trainer = trainer_for(LosesItsNode, model_folder, tmp_path, factory, reward_funcs=[correctness])
    with pytest.raises(RunStopped, match="is lost: Step failed on"):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize("kind", [SQLEnvTRL, SQLEnvTRLScored])
def test_a_question_that_a_node_cannot_serve_costs_its_rollout_and_no_more(
    stub: Stub, model_folder: Path, tmp_path: Path, kind: type[SQLEnvTRL]
) -> None:
    node = stub()

    class MeetsSlowGoldSql(ScriptedTrainer):
        def _tool_call_loop(self, *arguments: Any) -> Any:
            node.faults = [Fault(grpc.StatusCode.UNAVAILABLE, reason="WALL_CLOCK")]
            return super()._tool_call_loop(*arguments)

    factory = kind.configured(addresses=node.address, step_budget=10, retry_seconds=0.0)
    owned = {} if kind is SQLEnvTRLScored else {"reward_funcs": [correctness, progress]}
    trainer = trainer_for(MeetsSlowGoldSql, model_folder, tmp_path, factory, **owned)
    trainer.train()
    assert [env.scorable for env in trainer.environments] == [False, True, True, True]
    texts = [message["content"] for message in trainer.said[0] if message["role"] == "tool"]
    assert texts == ["Error: Episode is over."] * 3
    (log,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    # Of the three others one is right.
    name, mean = ("correctness", 1 / 3) if owned else ("SQLEnvTRLScored", (1.3 - 2 * 0.12) / 3)
    assert log[f"rewards/{name}/mean"] == pytest.approx(mean)
    assert trainer.state.global_step == 1
    assert trainer._logs["advantages"][0] == 0.0


def test_a_lost_node_stops_the_asynchronous_worker_too(stub: Stub) -> None:
    node = stub()
    env = SQLEnvTRL.configured(addresses=node.address, retry_seconds=0.2)()
    env.reset(seed=0)
    rates: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    with ThreadPoolExecutor(1) as threads:
        context = SimpleNamespace(_tool_pool=threads, _counters=Counter(), _rates=rates)

        def run() -> Any:
            calls = [{"function": {"name": "query", "arguments": {"sql": "SELECT 1"}}}]
            return asyncio.run(
                _AsyncRolloutLoop._execute_tool_calls(context, calls, {"query": env.query})
            )

        messages, _, failures = run()
        assert (messages[0]["content"], failures) == ("1. SELECT 1", 0)
        node.faults = [Fault(grpc.StatusCode.UNAVAILABLE)] * 10_000
        with pytest.raises(RunStopped):
            run()


def test_the_example_runs_on_a_tiny_model(
    real_node: Callable[[], RealNode],
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {
        "SQLENV_ADDRESSES": real_node().address,
        "SQLENV_MODEL": str(model_folder),
        "SQLENV_STEPS": "2",
        "SQLENV_COMPLETION_TOKENS": "48",
        "SQLENV_OUTPUT_DIR": str(tmp_path),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    cells = runpy.run_path(str(EXAMPLE))
    trainer = cells["trainer"]
    assert trainer.state.global_step == 2
    assert [
        entry["rewards/correctness/mean"]
        for entry in trainer.state.log_history
        if "reward" in entry
    ] == [0.0, 0.0]
    assert all(env.scorable for env in trainer.environments)
