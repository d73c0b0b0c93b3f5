"""A process of `sqlenv env-node` that tests can kill and restart."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from pathlib import Path

#: All nodes of a test sign with it, so that they share episodes.
SIGNING_KEY = "a key that only tests use, 32 bytes or more"


def port_of(process: subprocess.Popen[bytes], log_file: Path) -> int:
    """Waits until an env-node that prints to `log_file` serves, and returns its port."""
    deadline = time.monotonic() + 120
    while True:
        has_ended = process.poll() is not None
        log = log_file.read_text(encoding="utf-8")
        if serves := re.search(r"env-node serves on \S+:(\d+)\n", log):
            return int(serves[1])
        assert not has_ended and time.monotonic() < deadline, f"env-node does not serve: {log}"
        time.sleep(0.05)


class RealNode:
    """Serves until `kill`. The first start in `folder` builds the data there."""

    def __init__(
        self, binary: Path, folder: Path, *settings: str, signing_key: str = SIGNING_KEY
    ) -> None:
        """Starts a node. Without a key, each start draws one, as with default settings."""
        self._binary, self._folder, self.port = binary, folder, 0
        key = [f"env.signing_key={signing_key}"] if signing_key else []
        self._settings = [text for setting in [*key, *settings] for text in ("--set", setting)]
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the process, on the same port as before if any, and waits until it serves."""
        # Each start has a log of its own, because `port_of` reads the first address.
        with tempfile.NamedTemporaryFile(dir=self._folder, suffix=".log", delete=False) as log:
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
        self.port = port_of(self._process, Path(log.name))

    def kill(self) -> None:
        """Kills the process with SIGKILL, without a drain."""
        self._process.kill()
        self._process.wait()
