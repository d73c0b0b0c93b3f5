"""`server`: OpenEnv's entry point, which becomes `sqlenv env-node`.

The environment is the Rust binary; this file finds it and replaces its own process by it, so that signals and the exit
status are the binary's.
"""

from __future__ import annotations

import os
import shutil
import sys


def main() -> None:
    """Serves on 0.0.0.0 and `$PORT`, or 8000; arguments go to `sqlenv env-node`, `$SQLENV_BINARY` names the binary."""
    binary = os.environ.get("SQLENV_BINARY") or shutil.which("sqlenv")
    if not binary:
        sys.exit("sqlenv is not on PATH; build it with `cargo build --release`, or name it by SQLENV_BINARY")
    listen = f"0.0.0.0:{os.environ.get('PORT', '8000')}"
    # A flag given by the caller stands alone: the binary refuses it twice.
    arguments = sys.argv[1:] if "--listen" in sys.argv else ["--listen", listen, *sys.argv[1:]]
    try:
        os.execv(binary, [binary, "env-node", *arguments])
    except OSError as error:
        sys.exit(f"{binary} cannot be run: {error}; name the binary by SQLENV_BINARY")


if __name__ == "__main__":
    main()
