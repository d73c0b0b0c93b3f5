"""Tests that TRL continues the training of this project's own models: the same tokens in the same
episodes, and real steps from the base policy. Opt-in as test_trl_trainer.py.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_node import RealNode
from real_run import STEP_BUDGET, train, trajectories
from sqlenv import EpisodeRollouts, SQLEnvTRL
from sqlenv.rendering import opening
from sqlenv.rewards import correctness, operational, progress

if os.environ.get("SQLENV_TEST_TRL") != "1":
    pytest.skip(
        "TRL on own models is not tested; SQLENV_TEST_TRL=1 does, where trl and torch are "
        "installed",
        allow_module_level=True,
    )

from datasets import Dataset
from tiny_qwen3 import write_model
from trl import GRPOConfig, GRPOTrainer

EMBEDDED = Path(__file__).parents[2] / "policy/embedded"
EXAMPLE = Path(__file__).parents[1] / "examples/grpo_with_trl.py"


class Replay(GRPOTrainer):
    """A `GRPOTrainer` whose model says what an actor has sampled."""

    episodes: list[dict[str, Any]]
    #: How often the model was asked, per turn of the batch.
    asked: list[int]

    def _generate_single_turn(
        self, prompt_ids: list[Any], *_: Any, **__: Any
    ) -> tuple[list[list[int]], None]:
        self.asked.append(len(prompt_ids))
        following = []
        for ids in prompt_ids:
            # The tokens so far must begin the actor's, of which the next sampled ones follow.
            segment = self.episodes[ids.row]["segments"][0]
            tokens, mask = segment["tokens"], segment["mask"]
            assert list(ids) == tokens[: len(ids)]
            assert mask[len(ids)] == 1
            end = mask.index(0, len(ids)) if 0 in mask[len(ids) :] else len(mask)
            following.append(tokens[len(ids) : end])
        return following, None


class EpisodeReplay(EpisodeRollouts, Replay):
    """With the changes under test."""


def trainer_for(
    kind: type[GRPOTrainer], model: Path, folder: Path, rows: list[Any], address: str, **given: Any
) -> GRPOTrainer:
    return kind(
        model=str(model),
        train_dataset=Dataset.from_list(rows),
        environment_factory=SQLEnvTRL.configured(addresses=address, step_budget=STEP_BUDGET),
        reward_funcs=[correctness, progress, operational],
        args=GRPOConfig(
            **{
                "output_dir": str(folder),
                "num_generations": 2,
                "per_device_train_batch_size": 2,
                "max_completion_length": 1_500,
                "max_steps": 1,
                "logging_steps": 1,
                "report_to": "none",
                "use_cpu": True,
                "bf16": False,
                "save_strategy": "no",
                "chat_template_kwargs": {"enable_thinking": False},
                **given,
            }
        ),
    )


def qwen3_run(binary: Path, folder: Path) -> tuple[Path, Path]:
    """Returns a model whose prompts list the tools, as Qwen3's do, and a run that starts there."""
    model = folder / "tiny-qwen3"
    model.mkdir()
    write_model(model)
    settings = (
        "learner.rollout.max_context_tokens=6000",
        "learner.micro_batch_tokens=6000",
        "learner.rollout.max_completion_tokens=16",
    )
    return model, train(binary, folder, "tiny-qwen3", *settings, model=model)


def is_well_formed(episode: dict[str, Any]) -> bool:
    """Returns whether each turn of the episode is one tool call, and all fit into the context."""
    results = [message for message in episode["messages"] if "malformed_call" in message]
    return len(episode["segments"]) == 1 and not any(it["malformed_call"] for it in results)


@pytest.mark.parametrize("family", ["embedded", "tiny-qwen3"])
def test_an_episode_has_the_tokens_of_an_actor(
    family: str,
    binary: Path,
    node_folder: Path,
    real_run: Path,
    real_node: Callable[[], RealNode],
    tmp_path: Path,
) -> None:
    model, run = EMBEDDED, real_run
    if family == "tiny-qwen3":
        model, run = qwen3_run(binary, node_folder)
    # A random model calls no tool. TRL ends such a rollout, so there the test compares the prompt
    # and the first turn.
    episodes = trajectories(binary, run)
    assert len(episodes) >= 4 and len(episodes) % 2 == 0
    assert family == "tiny-qwen3" or sum(map(is_well_formed, episodes)) >= 4
    rows = [{"prompt": opening(), "question_id": it["question_id"]} for it in episodes]
    trainer = trainer_for(EpisodeReplay, model, tmp_path, rows, real_node().address)
    trainer.episodes, trainer.asked = episodes, []
    output = trainer._generate_and_score_completions(rows)
    for index, episode in enumerate(episodes):
        pairs = [("prompt_ids", "prompt_mask"), ("completion_ids", "completion_mask")]
        parts = [output[ids][index][output[mask][index] == 1].tolist() for ids, mask in pairs]
        segment = episode["segments"][0]
        tokens = parts[0] + parts[1]
        assert tokens == segment["tokens"][: len(tokens)]
        mask = [0] * len(parts[0]) + output["tool_mask"][index][: len(parts[1])].tolist()
        assert mask == segment["mask"][: len(tokens)] and 1 in mask
        if is_well_formed(episode):
            assert len(tokens) == len(segment["tokens"])
            assert trainer.environments[index].episode.correct == episode["correct"]
    if all(map(is_well_formed, episodes)):
        turns = [sum(m["role"] == "assistant" for m in it["messages"]) for it in episodes]
        assert trainer.asked == [sum(n > turn for n in turns) for turn in range(max(turns))]


def test_without_the_mixin_the_model_is_asked_after_the_end(
    binary: Path, real_run: Path, real_node: Callable[[], RealNode], tmp_path: Path
) -> None:
    class Talkative(Replay):
        def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
            self.asked.append(len(prompt_ids))
            words = "<tool_call>\n" + json.dumps({"name": "answer", "arguments": {"value": "1"}})
            ids = self.processing_class(f"{words}\n</tool_call><|im_end|>")["input_ids"]
            return [ids for _ in prompt_ids], None

    class Brief(EpisodeRollouts, Talkative):
        pass

    rows = [{"prompt": opening(), "seed": 0}] * 2
    address = real_node().address
    for kind, turns, penalty in [(Talkative, 4, -0.3), (Brief, 1, 0.0)]:
        settings = {"max_tool_calling_iterations": 4, "max_completion_length": 400}
        trainer = trainer_for(kind, EMBEDDED, tmp_path, rows, address, **settings)
        trainer.asked = []
        output = trainer._generate_and_score_completions(rows)
        assert trainer.environments[0].penalty == pytest.approx(penalty)
        assert len(trainer.asked) in (turns, turns + 1)
        if kind is Brief:
            last = output["completion_ids"][0][output["completion_mask"][0] == 1][-1]
            assert int(last) in trainer.eos_token_ids


def test_the_example_trains_the_base_policy(
    binary: Path,
    node_folder: Path,
    real_node: Callable[[], RealNode],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {
        "SQLENV_ADDRESSES": real_node().address,
        "SQLENV_MODEL": str(EMBEDDED),
        "SQLENV_STEPS": "2",
        "SQLENV_OUTPUT_DIR": str(tmp_path),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    cells = runpy.run_path(str(EXAMPLE))
    trainer = cells["trainer"]
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logs) == 2
    # The base policy answers questions; with other prompts or tokens it answers none.
    assert sum(entry["rewards/correctness/mean"] for entry in logs) > 0
    assert all(entry["tools/failure_frequency"] == 0.0 for entry in logs)
    questions = cells["dataset"]["question_id"]
    databases = [question.rsplit("_", 2)[0] for question in questions]
    assert set(databases[:100]) == set(databases)
    assert len(set(databases)) > 2

    # The program evaluates what TRL has saved.
    trainer.save_model(str(tmp_path / "model"))
    result = tmp_path / "evaluation.json"
    command = [binary, "eval", "--preset", "smoke", "--model", tmp_path / "model"]
    ended = subprocess.run(
        [*command, "--questions", "20", "--json", result],
        cwd=node_folder,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(result.read_text())["correct"] > 5
