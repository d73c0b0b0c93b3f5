"""Tests that the committed stubs are those that the proto generates."""

from __future__ import annotations

from pathlib import Path

import pytest
from generate_stubs import FOLDER, generate


def test_committed_stubs_are_current(tmp_path: Path) -> None:
    if not (FOLDER.parent / "proto").is_dir():
        pytest.skip("the proto folder is missing: this is not the repository")
    generate(tmp_path)
    generated = {file.name: file.read_text() for file in tmp_path.iterdir()}
    committed = {name: (FOLDER / "v1" / name).read_text() for name in generated}
    assert len(generated) == 3
    assert generated == committed, "run `python tests/generate_stubs.py`"
