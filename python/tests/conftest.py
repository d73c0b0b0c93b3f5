"""Fixtures: stub nodes, real nodes, certificates.

pytest reports every skipped test with its reason (`-ra` in pyproject.toml).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# Tests serve on these addresses, which a proxy of the environment cannot reach.
os.environ.setdefault("no_proxy", os.environ.get("NO_PROXY", "localhost,127.0.0.1"))

from real_node import RealNode
from real_run import train
from sqlenv.channels import _OPTIONS
from stub_node import StubNode

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def stub() -> Iterator[Callable[..., StubNode]]:
    """Starts stub nodes, and stops them after the test."""
    started: list[StubNode] = []

    def start(**settings: object) -> StubNode:
        started.append(StubNode(**settings).start())
        return started[-1]

    yield start
    for node in started:
        node.stop()


@pytest.fixture(scope="session")
def binary() -> Path:
    """The binary of SQLENV_BINARY, or the release build of the workspace."""
    named = os.environ.get("SQLENV_BINARY")
    found = Path(named) if named else REPOSITORY / "target/release/sqlenv"
    if not found.is_file():
        assert not named, f"SQLENV_BINARY names {named}, which is not a file"
        pytest.skip("no sqlenv binary: run `cargo build --release` or set SQLENV_BINARY")
    return found.resolve()


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory, binary: Path) -> Path:
    """A working directory with the project's own data, for any number of nodes."""
    folder = tmp_path_factory.mktemp("env-node")
    RealNode(binary, folder).kill()
    return folder


@pytest.fixture(scope="session")
def real_run(binary: Path, node_folder: Path) -> Path:
    """The folder of a short run from the base policy, on the data of `node_folder`."""
    return train(binary, node_folder, "base")


@pytest.fixture
def real_node(binary: Path, node_folder: Path) -> Iterator[Callable[..., RealNode]]:
    """Starts real nodes over the same data, and kills them after the test."""
    started: list[RealNode] = []

    def start(*settings: str, **more: str) -> RealNode:
        started.append(RealNode(binary, node_folder, *settings, **more))
        return started[-1]

    yield start
    for node in started:
        node.kill()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with key.pem and cert.pem: a self-signed certificate of localhost."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is missing, so TLS is not tested")
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run(
        f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
        "-addext subjectAltName=DNS:localhost "
        "-keyout key.pem -out cert.pem",
        shell=True,
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture
def quick_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes channels reconnect to a replaced node every 100 ms, so that tests do not wait."""
    names = ("initial", "min", "max")
    quick = {f"grpc.{name}_reconnect_backoff_ms": 100 for name in names}
    monkeypatch.setattr("sqlenv.channels._OPTIONS", list({**dict(_OPTIONS), **quick}.items()))
