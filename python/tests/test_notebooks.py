"""Runs the notebooks against the binary with small budgets, and reads what they computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from real_node import RealNode
from real_run import SETTINGS

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


@pytest.fixture
def run_notebook(
    real_node: Callable[[], RealNode],
    binary: Path,
    node_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[str, int]]:
    """Runs a notebook in the node's folder. Returns what it printed, and its number of images."""

    def run(name: str, **settings: str) -> tuple[str, int]:
        for setting, value in {"SQLENV_BINARY": str(binary), **settings}.items():
            monkeypatch.setenv(setting, value)
        notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
        where = {"metadata": {"path": str(node_folder)}}
        NotebookClient(
            notebook, timeout=900, iopub_timeout=120, startup_timeout=300, resources=where
        ).execute()
        outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
        printed = "".join(out["text"] for out in outputs if out.get("name") == "stdout")
        return printed, sum("image/png" in out.get("data", {}) for out in outputs)

    return run


def lines_of(printed: str, start: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith(start)]


def test_train(run_notebook: Callable[..., tuple[str, int]], node_folder: Path) -> None:
    arguments = " ".join(["--preset smoke", *(f"--set {setting}" for setting in SETTINGS)])
    printed, images = run_notebook("train.ipynb", SQLENV_TRAIN_ARGUMENTS=arguments)
    assert images == 1
    assert lines_of(printed, "steps = 1")
    (oracle,) = [line for line in lines_of(printed, "eval ") if " oracle " in line]
    assert " greedy " in oracle and " 100.0 % " in oracle
    assert any(" GRPO " in line or " grpo " in line for line in lines_of(printed, "eval "))
    assert lines_of(printed, "report: ")
    assert "model.safetensors" in printed
    assert (node_folder / "runs/notebook/report.html").is_file()


def test_compare(
    run_notebook: Callable[..., tuple[str, int]], real_node: Callable[[], RealNode]
) -> None:
    printed, images = run_notebook(
        "compare.ipynb", SQLENV_ADDRESSES=real_node().address, SQLENV_EPISODES="40"
    )
    assert images == 1
    (oracle,), (random,) = lines_of(printed, "oracle  "), lines_of(printed, "random  ")
    assert "100.0 %" in oracle
    assert float(random.split()[1]) < 20.0
    (against,) = lines_of(printed, "oracle against counts: +")
    assert " -0, p = " in against


def test_showcase(
    run_notebook: Callable[..., tuple[str, int]], real_node: Callable[[], RealNode]
) -> None:
    printed, _ = run_notebook("showcase.ipynb", SQLENV_ADDRESSES=real_node().address)
    for words in [
        "SQL error: no such column: no_such_column",
        "only SELECT or WITH",
        "Row count: ",
        "Answer submitted: incorrect. True False",
        "Answer: 2",
    ]:
        assert words in printed


def test_a_fault_in_a_notebook_fails(run_notebook: Callable[..., tuple[str, int]]) -> None:
    with pytest.raises(CellExecutionError, match="invalid value"):
        run_notebook("train.ipynb", SQLENV_TRAIN_ARGUMENTS="--preset nonsense")


@pytest.mark.parametrize("name", ["train", "compare", "showcase"])
def test_a_notebook_is_stored_without_results(name: str) -> None:
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells: list[dict[str, Any]] = [it for it in notebook["cells"] if it["cell_type"] == "code"]
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
