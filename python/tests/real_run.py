"""A short run of `sqlenv train`, and its trajectories as `sqlenv trajectories` prints them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

#: The number of actions of an episode.
STEP_BUDGET = 10
#: One step of GRPO from the base policy, and the least evaluation.
SETTINGS = (
    "model.random_weights=false",
    "warm_start.enabled=false",
    "imitation.enabled=false",
    "learner.steps=1",
    f"learner.rollout.step_budget={STEP_BUDGET}",
    "evaluation.questions=2",
    "evaluation.unseen_questions=2",
    "evaluation.curve_questions=2",
)


def train(binary: Path, folder: Path, name: str, *settings: str, model: Path | None = None) -> Path:
    """Runs in `folder`, which has or gets the project's own data. Returns the run's folder."""
    chosen = [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]
    source = [] if model is None else ["--model", str(model)]
    command = [binary, "train", "--preset", "smoke", "--name", name, *source, *chosen]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return folder / "runs" / name


def trajectories(binary: Path, run: Path) -> list[dict[str, Any]]:
    """Returns all trajectories of the run's journal."""
    command = [binary, "trajectories", str(run)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in ended.stdout.splitlines()]
