"""Tests that OpenEnv's tools accept the folder and that its server is the binary."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from real_node import port_of
from sqlenv import GrpcEnv

FOLDER = Path(__file__).parents[1]
#: The oldest release whose rules for folders differ, and the newest.
RELEASES = ["openenv-core==0.2.3", "openenv==0.10.0"]


@pytest.fixture(params=RELEASES)
def openenv(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Returns the command of one release: the installed one, or one from a new environment."""
    name, wanted = request.param.split("==")
    if name == "openenv" and version("openenv") == wanted:
        return Path(sys.executable).with_name("openenv")
    if os.environ.get("SQLENV_TEST_PYPI") != "1":
        pytest.skip(f"{request.param} is not installed; SQLENV_TEST_PYPI=1 fetches it")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    fetched = subprocess.run(
        [tmp_path / "venv/bin/pip", "install", "--quiet", request.param],
        capture_output=True,
        text=True,
    )
    if fetched.returncode != 0:
        pytest.skip(f"{request.param} cannot be fetched: {fetched.stderr}")
    return tmp_path / "venv/bin/openenv"


def test_openenv_validates_the_folder(openenv: Path) -> None:
    report = subprocess.run([openenv, "validate", FOLDER], capture_output=True, text=True)
    assert report.returncode == 0, report.stdout + report.stderr


def test_the_static_checks_of_openenv_pass() -> None:
    if f"openenv=={version('openenv')}" != RELEASES[-1]:
        pytest.skip(f"{RELEASES[-1]} is not installed, which has levels of checks")
    command = [Path(sys.executable).with_name("openenv"), "validate", "--level", "static", FOLDER]
    report = subprocess.run(command, capture_output=True, text=True)
    assert report.stdout.splitlines()[-1] == "Verdict: PASS", report.stdout + report.stderr


def test_openenv_would_push_the_folder() -> None:
    names = [
        "openenv.yaml",
        "__init__.py",
        "client.py",
        "models.py",
        "README.md",
        "Dockerfile",
        "pyproject.toml",
        "uv.lock",
    ]
    assert [name for name in names if not (FOLDER / name).is_file()] == []


def test_the_server_is_the_binary(binary: Path, node_folder: Path, tmp_path: Path) -> None:
    log_file = tmp_path / "server.log"
    # This is a process of its own, because the test checks that it is replaced by another.
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [
                Path(sys.executable).with_name("server"),
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--log",
                "error",
            ],
            cwd=node_folder,
            env={**os.environ, "SQLENV_BINARY": str(binary)},
            stderr=log,
        )
    try:
        with GrpcEnv(f"127.0.0.1:{port_of(process, log_file)}") as env:
            assert env.info().databases
        assert Path(f"/proc/{process.pid}/exe").resolve() == binary
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()


def test_the_address_is_that_of_flags_then_of_variables(tmp_path: Path) -> None:
    server = Path(sys.executable).with_name("server")
    binary = tmp_path / "sqlenv"
    binary.write_text('#!/bin/sh\necho "$*"\n')
    binary.chmod(0o755)
    environment = {**os.environ, "SQLENV_BINARY": str(binary)}
    node = {"SQLENV_LISTEN": "127.0.0.1:9", "HOST": "127.0.0.2", "PORT": "7"}
    empty = dict.fromkeys(node, "")
    for flags, variables, address in [
        ([], empty, "--listen 0.0.0.0:8000"),
        ([], {**empty, "PORT": "7"}, "--listen 0.0.0.0:7"),
        ([], {**empty, "HOST": "::1"}, "--listen [::1]:8000"),
        ([], node, ""),
        (["--host", "127.0.0.3"], node, "--listen 127.0.0.3:7"),
        (["--port", "5"], node, "--listen 127.0.0.2:5"),
    ]:
        command = [server, "--mode", "production", *flags]
        printed = subprocess.check_output(command, env={**environment, **variables}, text=True)
        assert printed.split() == ["env-node", *address.split(), "--mode", "production"]


def test_a_missing_binary_is_named(tmp_path: Path) -> None:
    server = Path(sys.executable).with_name("server")
    without = {name: value for name, value in os.environ.items() if name != "SQLENV_BINARY"} | {
        "PATH": str(tmp_path)
    }
    for environment, message in [
        (without, "sqlenv is not on PATH"),
        ({**without, "SQLENV_BINARY": str(tmp_path / "absent")}, "absent cannot be run"),
    ]:
        ended = subprocess.run([server], env=environment, capture_output=True, text=True)
        assert ended.returncode == 1
        assert message in ended.stderr
