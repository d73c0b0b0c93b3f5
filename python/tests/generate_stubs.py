"""Writes v1/: `python tests/generate_stubs.py`, in an environment with the extra `test`.

The generator's version is pinned in pyproject.toml: generated code asks for a runtime at least as
new as its generator.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1]


def generate(into: Path) -> None:
    """Generates messages, types and stubs from the repository's proto into `into`."""
    with tempfile.TemporaryDirectory() as scratch:
        outputs = [f"--{kind}={scratch}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
        subprocess.run(
            [
                sys.executable,
                "-m",
                "grpc_tools.protoc",
                "-Iproto",
                *outputs,
                "proto/sqlenv/v1/env.proto",
            ],
            cwd=FOLDER.parent,
            check=True,
        )
        for file in sorted((Path(scratch) / "sqlenv/v1").iterdir()):
            shutil.copy(file, into / file.name)


if __name__ == "__main__":
    generate(FOLDER / "v1")
