"""Holds the package's rendering of episodes against that of this project's own actors."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path

import jinja2
from real_node import RealNode
from real_run import STEP_BUDGET, trajectories
from sqlenv import SQLEnvTRL
from sqlenv.rendering import opening
from sqlenv.trl_rollouts import TOOL_ORDER, in_order

REPOSITORY = Path(__file__).parents[2]


def test_a_prompt_is_that_of_an_actor_byte_for_byte(
    binary: Path, real_run: Path, real_node: Callable[[], RealNode]
) -> None:
    template = jinja2.Environment().from_string(
        (real_run / "model/chat_template.jinja").read_text(encoding="utf-8")
    )
    env = SQLEnvTRL.configured(addresses=real_node().address)()
    episodes = trajectories(binary, real_run)
    assert episodes
    for episode in episodes:
        messages = opening()
        messages[-1]["content"] += env.reset(prompt=messages, question_id=episode["question_id"])
        prompt = template.render(messages=messages, add_generation_prompt=True)
        assert prompt == episode["prompt"]


def test_an_action_has_the_result_that_an_actor_sees(
    binary: Path, real_run: Path, real_node: Callable[[], RealNode]
) -> None:
    env = SQLEnvTRL.configured(addresses=real_node().address, step_budget=STEP_BUDGET)()
    tools = {"describe": env.describe, "sample": env.sample, "query": env.query}
    tools["answer"] = env.answer
    results = 0
    for played in trajectories(binary, real_run):
        env.reset(question_id=played["question_id"])
        turns = iter(it for it in played["messages"] if it["role"] in ("assistant", "tool"))
        for message, result in zip(turns, turns, strict=True):
            (call,) = message["tool_calls"]
            arguments = json.loads(call["function"]["arguments"])
            assert tools[call["function"]["name"]](**arguments) == result["content"]
            results += 1
        assert env.episode is not None and env.episode.done
        assert env.episode.correct == played["correct"]
        assert abs(env.episode.episode_return - played["return"]) < 1e-9
    assert results > 8


def test_the_tools_have_the_words_and_the_order_of_the_actors_prompts() -> None:
    golden = REPOSITORY / "policy/tests/golden/chat/tools.json"
    schemas = [tool["function"] for tool in json.loads(golden.read_text())["tools"]["std"]]
    assert tuple(schema["name"] for schema in schemas) == TOOL_ORDER
    env = SQLEnvTRL()
    by_name = [env.answer, env.describe, env.query, env.sample]
    assert in_order([print, *by_name]) == [
        print,
        *(getattr(env, schema["name"]) for schema in schemas),
    ]
    for schema in schemas:
        ((parameter, words),) = schema["parameters"]["properties"].items()
        text = inspect.getdoc(getattr(env, schema["name"])) or ""
        assert re.sub(r"\s+", " ", text) == (
            f"{schema['description']} Args: {parameter}: {words['description']} "
            f"Returns: {schema['return']['description']}"
        )


def test_the_system_prompt_is_that_of_the_actors() -> None:
    source = (REPOSITORY / "actor/src/prompt.rs").read_text(encoding="utf-8")
    found = re.search(r'SYSTEM_PROMPT: &str = "((?:[^"\\]|\\.)*)"', source, re.DOTALL)
    assert found is not None
    assert opening()[0] == {"role": "system", "content": re.sub(r"\\\n\s*", "", found[1])}
