"""Tests `SQLEnv` with the installed OpenEnv, both versions of the protocol, and the binary."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest
import sqlenv
from pydantic import ValidationError
from real_node import RealNode
from sqlenv import SQLAction, SQLEnv, SQLObservation, SQLState
from stub_openenv import SCHEMA, StubOpenEnv


@pytest.fixture(params=[True, False], ids=["0.10", "0.2"])
def server(request: pytest.FixtureRequest) -> Iterator[StubOpenEnv]:
    started = StubOpenEnv(with_metadata=request.param).start()
    yield started
    started.stop()


def test_an_episode_in_sync_use(server: StubOpenEnv) -> None:
    with SQLEnv(server.base_url).sync() as env:
        first = env.reset(seed=7, episode_id="mine", question_id="q")
        assert isinstance(first.observation, SQLObservation)
        assert (first.observation.question, first.observation.schema_info) == ("How many?", SCHEMA)
        assert (first.reward, first.done, first.observation.budget_remaining) == (None, False, 15)
        assert first.observation.metadata == ({"a": 1} if server.with_metadata else {})
        assert getattr(first, "metadata", first.observation.metadata) == first.observation.metadata
        second = env.step(SQLAction(action_type="QUERY", argument="SELECT 1"))
        assert (second.observation.result, second.reward, second.observation.reward) == (
            "1. 39",
            0.02,
            0.02,
        )
        state = env.state()
        assert isinstance(state, SQLState)
        assert (state.episode_id, state.step_count) == ("mine", 1)
        last = env.step(SQLAction(action_type="ANSWER", argument="39"))
        assert (last.done, last.observation.done, last.reward) == (True, True, 1.0)
        assert last.observation.action_history == ["QUERY SELECT 1", "ANSWER 39"]
    assert server.frames[0] == {
        "type": "reset",
        "data": {"seed": 7, "episode_id": "mine", "question_id": "q"},
    }
    assert server.frames[1]["data"] == {
        "action_type": "QUERY",
        "argument": "SELECT 1",
        "metadata": {},
    }


def test_only_its_names_need_openenv() -> None:
    program = "import sys; sys.modules['openenv'] = None; from sqlenv import *; GrpcEnv"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert {"SQLEnv", "SQLAction", "GrpcEnv"} <= set(dir(sqlenv))


def test_the_example_of_the_class_is_python() -> None:
    documented = inspect.getdoc(SQLEnv) or ""
    example = textwrap.dedent(documented.split("Example:\n")[1])
    assert example.count("\n") > 2
    compile(example, "the example", "exec")


def test_an_episode_in_async_use(server: StubOpenEnv) -> None:
    async def play() -> float | None:
        async with SQLEnv(server.base_url) as env:
            await env.reset()
            result = await env.step(SQLAction(action_type="ANSWER", argument="39"))
            return result.reward

    assert asyncio.run(play()) == 1.0


def test_an_error_frame_is_raised(server: StubOpenEnv) -> None:
    with (
        SQLEnv(server.base_url).sync() as env,
        pytest.raises(RuntimeError, match=r"reset first \(code: EXECUTION_ERROR\)"),
    ):
        env.step(SQLAction(action_type="QUERY", argument="SELECT 1"))


def test_models_refuse_what_the_schema_refuses() -> None:
    with pytest.raises(ValidationError):
        SQLAction(action_type="QUERY", argument="SELECT 1", note="more")
    with pytest.raises(ValidationError):
        SQLAction(action_type="QUERY")
    assert SQLAction(action_type="", argument="").argument == ""


def test_the_binary_speaks_it(real_node: Callable[[], RealNode]) -> None:
    node = real_node()
    try:
        urllib.request.urlopen(f"{node.address}/health", timeout=5).close()
    except (urllib.error.URLError, OSError) as error:
        pytest.skip(f"this binary does not serve OpenEnv: {error}")
    with SQLEnv(node.address).sync() as env:
        first = env.reset(seed=3, episode_id="mine")
        assert first.observation == env.reset(seed=3, episode_id="mine").observation
        assert first.observation.schema_info.startswith("Available tables:")
        result = env.step(SQLAction(action_type="QUERY", argument="SELECT 39"))
        assert (result.observation.result, result.done) == ("1. 39", False)
        assert (env.state().episode_id, env.state().step_count) == ("mine", 1)
        assert env.step(SQLAction(action_type="ANSWER", argument="nonsense")).done
