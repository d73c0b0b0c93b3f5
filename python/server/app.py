"""`server`: OpenEnv's entry point, which becomes `sqlenv env-node`.

The environment is the Rust binary; this file finds it and replaces its own process by it, so that signals and the exit
status are the binary's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys


def main() -> None:
    """Serves on `--host` and `--port`; other arguments go to `sqlenv env-node`. `$SQLENV_BINARY` names the binary."""
    parser = argparse.ArgumentParser(prog="server", allow_abbrev=False, description=main.__doc__)
    parser.add_argument("--host", default=os.environ.get("HOST", "0.0.0.0"))
    parser.add_argument("--port", default=os.environ.get("PORT", "8000"))
    given, others = parser.parse_known_args()
    binary = os.environ.get("SQLENV_BINARY") or shutil.which("sqlenv")
    if not binary:
        sys.exit("sqlenv is not on PATH; build it with `cargo build --release`, or name it by SQLENV_BINARY")
    host = f"[{given.host}]" if ":" in given.host else given.host
    try:
        os.execv(binary, [binary, "env-node", "--listen", f"{host}:{given.port}", *others])
    except OSError as error:
        sys.exit(f"{binary} cannot be run: {error}; name the binary by SQLENV_BINARY")


if __name__ == "__main__":
    main()
