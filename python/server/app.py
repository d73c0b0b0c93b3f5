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

    `$SQLENV_BINARY` is the path of the binary.
    """
    parser = argparse.ArgumentParser(prog="server", allow_abbrev=False, description=main.__doc__)
    parser.add_argument("--host", default=os.environ.get("HOST", "0.0.0.0"))
    parser.add_argument("--port", default=os.environ.get("PORT", "8000"))
    given, others = parser.parse_known_args()
    binary = os.environ.get("SQLENV_BINARY") or shutil.which("sqlenv")
    if not binary:
        sys.exit(
            "sqlenv is not on PATH; build it with `cargo build --release`, or set SQLENV_BINARY"
        )
    host = f"[{given.host}]" if ":" in given.host else given.host
    try:
        os.execv(binary, [binary, "env-node", "--listen", f"{host}:{given.port}", *others])
    except OSError as error:
        sys.exit(f"{binary} cannot be run: {error}; set SQLENV_BINARY to the binary")


if __name__ == "__main__":
    main()
