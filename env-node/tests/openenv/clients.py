"""Full episodes by OpenEnv's own, unmodified clients against the server at argv[1].

Runs under openenv-core 0.2.3 and under openenv 0.10.0; prints one line for each kind of client, and fails at the first
difference. The question is `cars-1` of the Rust tests' dataset: how many cars are there? 40.
"""

import asyncio
import inspect
import sys

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient
from openenv.core.sync_client import SyncEnvClient

BASE_URL = sys.argv[1]
RESET = {"question_id": "cars-1", "episode_id": "E", "reward_profile": "sqlenv-final", "unknown": 1}
PLAY = [
    ("DESCRIBE", "Cars", 0.0, "Row count: 40"),
    ("QUERY", "SELECT count(*) FROM Cars", 0.15, "1. 40"),
    ("QUERY", "SELECT Salary FROM Cars", -0.02, "SQL error: no such column: Salary"),
    ("ANSWER", "40", 1.0, "correct"),
]


class SQLAction(Action):
    action_type: str
    argument: str


class SQLObservation(Observation):
    question: str
    schema_info: str
    result: str = ""
    error: str = ""
    step_count: int = 0
    budget_remaining: int = 0
    action_history: list[str] = []


class SQLEnvClient(EnvClient[SQLAction, SQLObservation, State]):
    def _step_payload(self, action):
        return action.model_dump()

    def _parse_result(self, payload):
        observation = SQLObservation(
            **payload["observation"], done=payload["done"], reward=payload["reward"]
        )
        return StepResult(
            observation=observation, reward=payload["reward"], done=payload["done"]
        )

    def _parse_state(self, payload):
        return State(**payload)


def seen(result):
    """Step count, result and error of an observation, typed or not."""
    observation = result.observation
    if not isinstance(observation, dict):
        observation = observation.model_dump()
    return observation["step_count"], observation["result"] + observation["error"]


def check_reset(result):
    assert result.reward is None and result.done is False, result
    assert seen(result) == (0, ""), result


def check_step(result, number):
    _, _, reward, text = PLAY[number]
    assert result.reward == reward, (result, reward)
    step_count, shown = seen(result)
    assert step_count == number + 1 and text in shown, result
    assert result.done is (number == len(PLAY) - 1), result


def check_state(state, step_count):
    state = state if isinstance(state, dict) else state.model_dump()
    assert state == {"episode_id": "E", "step_count": step_count}, state


async def play(client, action):
    """One episode on a connected asynchronous client, then one more in the same session."""
    for _ in range(2):
        check_reset(await client.reset(**RESET))
        check_state(await client.state(), 0)
        for number, (action_type, argument, _, _) in enumerate(PLAY):
            check_step(await client.step(action(action_type, argument)), number)
        check_state(await client.state(), len(PLAY))
    after = await client.step(action("QUERY", "SELECT 1"))
    assert after.done and "Episode is over" in seen(after)[1], after


def typed(action_type, argument):
    return SQLAction(action_type=action_type, argument=argument)


def plain(action_type, argument):
    return {"action_type": action_type, "argument": argument}


async def asynchronous():
    async with SQLEnvClient(base_url=BASE_URL) as client:
        await play(client, typed)


async def generic():
    async with GenericEnvClient(base_url=BASE_URL) as client:
        await play(client, plain)
        for wrong in ({"action_type": "QUERY"}, {"action_type": "QUERY", "argument": 5}):
            try:
                await client.step(wrong)
                raise AssertionError(f"{wrong} was taken")
            except RuntimeError as error:
                assert "Invalid message (code: VALIDATION_ERROR)" in str(error), error
        check_state(await client.state(), len(PLAY))


async def step_before_reset():
    async with GenericEnvClient(base_url=BASE_URL) as client:
        try:
            await client.step(plain("QUERY", "SELECT 1"))
            raise AssertionError("a step before the reset was taken")
        except RuntimeError as error:
            assert "(code: EXECUTION_ERROR)" in str(error), error
        check_reset(await client.reset(**RESET))


async def many():
    clients = [SQLEnvClient(base_url=BASE_URL) for _ in range(64)]

    async def one(client):
        async with client:
            await play(client, typed)

    await asyncio.gather(*map(one, clients))


def synchronous():
    client = SQLEnvClient(base_url=BASE_URL).sync()
    assert isinstance(client, SyncEnvClient)
    with client:
        check_reset(client.reset(**RESET))
        for number, (action_type, argument, _, _) in enumerate(PLAY):
            check_step(client.step(typed(action_type, argument)), number)
            check_state(client.state(), number + 1)


async def tools(**kwargs):
    """Steps are tool calls; an agent's mistake is text, a caller's is an error."""
    async with MCPToolClient(base_url=BASE_URL, **kwargs) as client:
        await client.reset(**RESET)
        names = [tool.name for tool in await client.list_tools()]
        assert names == ["describe", "sample", "query", "answer"], names
        query = await client.get_tool("query")
        assert query.input_schema["required"] == ["sql"], query
        assert "Row count: 40" in await client.call_tool("describe", table_name="Cars")
        assert await client.call_tool("query", sql="SELECT count(*) FROM Cars") == "1. 40"
        wrong = await client.call_tool("query", sql="SELECT Salary FROM Cars")
        assert wrong == "Error: SQL error: no such column: Salary", wrong
        for name, arguments in (("look", {"table_name": "Cars"}), ("query", {"limit": 5})):
            try:
                await client.call_tool(name, **arguments)
                raise AssertionError(f"{name} was taken")
            except RuntimeError as error:
                assert str(error).startswith(f"Tool '{name}' failed: "), error
        state = await client.state()
        assert (state.episode_id, state.step_count) == ("E", 3), state
        call = CallToolAction(tool_name="answer", arguments={"value": "40"})
        result = await client.step(call)
        assert (result.reward, result.done) == (1.0, True), result


async def new_session():
    """0.10 only: a second session beside the first."""
    async with SQLEnvClient(base_url=BASE_URL) as client:
        await client.reset(**RESET)
        child = await client.new_session()
        await play(child, typed)
        check_state(await client.state(), 0)


def run(name, done):
    if inspect.iscoroutine(done):
        asyncio.run(done)
    print(name, flush=True)


if __name__ == "__main__":
    run("EnvClient", asynchronous())
    run("SyncEnvClient", synchronous())
    run("GenericEnvClient", generic())
    run("step before reset", step_before_reset())
    run("64 sessions", many())
    run("MCPToolClient", tools())
    if hasattr(EnvClient, "new_session"):
        run("MCPToolClient, production", tools(mode="production"))
        run("new_session", new_session())
