"""A process of `sqlenv env-node` that tests can kill and restart."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from sqlenv import EnvUnreachable, GrpcEnv, RetryPolicy

#: All nodes of a test sign with it, so that they share episodes.
SIGNING_KEY = "a key that only tests use, 32 bytes or more"


def free_port() -> int:
    """Returns a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RealNode:
    """Serves until `kill`. The first start in `folder` builds the data there."""

    def __init__(
        self, binary: Path, folder: Path, *settings: str, signing_key: str = SIGNING_KEY
    ) -> None:
        """Starts a node. Without a key, each start draws one, as with default settings."""
        self._binary, self._folder, self.port = binary, folder, free_port()
        key = [f"env.signing_key={signing_key}"] if signing_key else []
        self._settings = [text for setting in [*key, *settings] for text in ("--set", setting)]
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the process, on the same port as before, and waits until it serves."""
        log_file = self._folder / f"node-{self.port}.log"
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binary,
                    "env-node",
                    "--listen",
                    f"127.0.0.1:{self.port}",
                    *self._settings,
                ],
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        # The port listens before the data is built, so only a reply shows that the node serves.
        patience = RetryPolicy(
            total_seconds=120, first_pause_seconds=0.05, longest_pause_seconds=0.05
        )
        with GrpcEnv(self.address, retry=patience) as env:
            try:
                env.info()
            except EnvUnreachable as error:
                raise AssertionError(f"env-node does not serve: {log_file.read_text()}") from error

    def kill(self) -> None:
        """Kills the process with SIGKILL, without a drain."""
        self._process.kill()
        self._process.wait()
