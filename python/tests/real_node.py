"""A process of `sqlenv env-node`, to be killed and started again."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from sqlenv import EnvUnreachable, GrpcEnv, RetryPolicy

#: All nodes of a test sign with it, so that they share episodes.
SIGNING_KEY = "a key that only tests use, 32 bytes or more"


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RealNode:
    """Serves from the start until `kill`; builds its data in `folder` when it is first started there."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self._binary, self._folder, self.port = binary, folder, free_port()
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the process, on the same port as before, and waits until it serves."""
        log_file = self._folder / f"node-{self.port}.log"
        with log_file.open("ab") as log:
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
                raise AssertionError(f"env-node does not serve: {log_file.read_text()}") from error

    def kill(self) -> None:
        """SIGKILL: no drain, no goodbye."""
        self._process.kill()
        self._process.wait()
