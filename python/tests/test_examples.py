"""Runs the example without a trainer against the binary. test_trl_trainer.py runs the other one."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
from real_node import RealNode

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_an_episode_and_two_baselines(
    real_node: Callable[[], RealNode],
    node_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SQLENV_ADDRESSES", real_node().address)
    monkeypatch.chdir(node_folder)
    cells = runpy.run_path(str(EXAMPLES / "episode_and_baselines.py"))
    cells["env"].close()
    baselines = cells["baselines"]
    assert baselines["oracle"].accuracy == 1.0
    assert baselines["oracle"].mean_return > 1.0
    assert len(baselines["random"].episodes) == 50
    assert baselines["random"].accuracy <= 0.2
    assert "SQL error: no such column: no_such_column" in capsys.readouterr().out
