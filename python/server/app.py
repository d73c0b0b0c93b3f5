"""`server`: OpenEnv's entry point, which becomes `sqlenv env-node`.

The environment is the Rust binary. This program finds it and replaces its own process by it, so
that signals and the exit status are those of the binary.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys


def main() -> None:
    """Serves on `--host` and `--port`. Other arguments go to `sqlenv env-node`.

    Without a flag `$SQLENV_LISTEN` is the address. Without that, `$HOST` and `$PORT` are, or else
    0.0.0.0 and 8000. `$SQLENV_BINARY` is the path of the binary. An empty variable has no effect.
    """
    parser = argparse.ArgumentParser(prog="server", allow_abbrev=False, description=main.__doc__)
    parser.add_argument("--host")
    parser.add_argument("--port")
    given, others = parser.parse_known_args()
    binary = os.environ.get("SQLENV_BINARY") or shutil.which("sqlenv")
    if not binary:
        sys.exit(
            "sqlenv is not on PATH; build it with `cargo build --release`, or set SQLENV_BINARY"
        )
    listen = []
    if given.host or given.port or not os.environ.get("SQLENV_LISTEN"):
        host = given.host or os.environ.get("HOST") or "0.0.0.0"
        port = given.port or os.environ.get("PORT") or "8000"
        listen = ["--listen", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
    try:
        os.execv(binary, [binary, "env-node", *listen, *others])
    except OSError as error:
        sys.exit(f"{binary} cannot be run: {error}; set SQLENV_BINARY to the binary")


if __name__ == "__main__":
    main()
