"""Fixtures: stub nodes, the real binary, folders of their own.

What is skipped is always reported with its reason (`-ra` in pyproject.toml).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlenv import EnvUnreachable, GrpcEnv, RetryPolicy

sys.path.insert(0, str(Path(__file__).parent))

from stub_node import StubNode

FOLDER = Path(__file__).parents[1]
REPOSITORY = FOLDER.parent
#: Both nodes of a test sign with it.
SIGNING_KEY = "a key that only tests use, 32 bytes or more"


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RealNode:
    """A process of `sqlenv env-node`, which builds its data in `folder` when it is first started there."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self._binary, self._folder, self.port = binary, folder, free_port()
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the process and waits until it serves; on the same port as before."""
        with (self._folder / f"node-{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, "env-node", "--listen", f"127.0.0.1:{self.port}", "--set", f"env.signing_key={SIGNING_KEY}"],
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        # The port listens before the data is built, so only an answer tells that the node serves.
        patience = RetryPolicy(total_seconds=120, first_pause_seconds=0.05, longest_pause_seconds=0.05)
        with GrpcEnv(self.address, retry=patience) as env:
            try:
                env.info()
            except EnvUnreachable as error:
                log_text = (self._folder / f"node-{self.port}.log").read_text()
                raise AssertionError(f"env-node does not serve: {log_text}") from error

    def kill(self) -> None:
        """SIGKILL: no drain, no goodbye."""
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def binary() -> Path:
    """The binary that SQLENV_BINARY names, or the workspace's release build."""
    named = os.environ.get("SQLENV_BINARY")
    found = Path(named) if named else REPOSITORY / "target/release/sqlenv"
    if not found.is_file():
        assert not named, f"SQLENV_BINARY names {named}, which is no file"
        pytest.skip("no sqlenv binary: run `cargo build --release` or set SQLENV_BINARY")
    return found.resolve()


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory, binary: Path) -> Path:
    """A working directory with the project's own data, for any number of nodes."""
    folder = tmp_path_factory.mktemp("env-node")
    node = RealNode(binary, folder)
    node.kill()
    return folder


@pytest.fixture
def real_node(binary: Path, node_folder: Path) -> Iterator[Callable[[], RealNode]]:
    """Starts real nodes over the same data, and kills them after the test."""
    started: list[RealNode] = []

    def start() -> RealNode:
        started.append(RealNode(binary, node_folder))
        return started[-1]

    yield start
    for node in started:
        node.kill()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a self-signed authority that is also the certificate of localhost: key.pem, cert.pem."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is missing, so TLS is not tested")
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run(
        f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost "
        "-keyout key.pem -out cert.pem",
        shell=True,
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture
def quick_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels that look for a replaced node every 50 ms, so that a test need not wait for it."""
    options = [("grpc.min_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]
    monkeypatch.setattr("sqlenv.channels._OPTIONS", [("grpc.initial_reconnect_backoff_ms", 100), *options])
