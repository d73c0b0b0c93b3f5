"""Tests `SQLEnvTRL` and the reward functions without TRL: texts, selection of questions, faults."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from sqlenv import EnvError, EnvRefused, EnvUnserved, RunStopped, SQLEnvTRL, SQLEnvTRLScored
from sqlenv.rendering import opening
from sqlenv.rewards import correctness, operational, progress
from sqlenv.trl_env import as_text
from stub_node import QUESTION, SCHEMA, Fault, StubNode

Stub = Callable[..., StubNode]


def make(node: StubNode, kind: type[SQLEnvTRL] = SQLEnvTRL, **settings: Any) -> SQLEnvTRL:
    return kind.configured(addresses=node.address, **{"retry_seconds": 0.2, **settings})()


def test_the_model_sees_the_question_and_what_the_tools_say(stub: Stub) -> None:
    env = make(stub(), step_budget=10)
    text = f"{QUESTION}\n{SCHEMA}"
    assert env.reset(prompt=[{"role": "user", "content": "Go."}], seed=0) == f"\n\n{text}"
    assert env.reset(prompt=opening(), seed=0) == env.reset(seed=0) == text
    assert env.describe(table_name="cars") == "1. cars"
    assert env.query(sql="bad") == "Error: SQL error: bad"
    assert env.sample("cars") == "1. cars"
    assert env.query(sql="x" * 3_000) == "1. " + "x" * 1_997 + "... [truncated]"
    assert env.answer(value="39") == "Answer submitted: correct."


def test_the_tools_are_the_public_methods(stub: Stub) -> None:
    env = make(stub())
    tools = {
        name
        for name, _ in inspect.getmembers(type(env), inspect.isfunction)
        if not name.startswith("_")
    }
    assert tools == {"reset", "describe", "sample", "query", "answer"}
    scored = {
        name
        for name, _ in inspect.getmembers(SQLEnvTRLScored, inspect.isfunction)
        if not name.startswith("_")
    }
    assert scored == tools | {"get_reward"}


def test_needless_missing_and_odd_arguments_are_no_exceptions(stub: Stub) -> None:
    env = make(stub(), step_budget=100)
    env.reset(seed=0)
    assert env.describe(table_name="cars", sql=None, value=None) == "1. cars"
    assert env.query(sql="SELECT 1", self="x") == "1. SELECT 1"
    assert env.query(sql=None) == env.query() == env.query(statement="SELECT 1") == "1. "
    assert env.query(sql="\ud83d\x00") == "1. ?\x00"
    assert env.answer(value=39) == "Answer submitted: correct."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("a", "a"),
        (39, "39"),
        (1.5, "1.5"),
        (True, "true"),
        ([], "[]"),
        (["a", 2, None], "a, 2, "),
        ([["a", 1], ["b", 2]], "a | 1\nb | 2"),
        ({"a": "é"}, '{"a": "é"}'),
    ],
)
def test_arguments_become_text(value: object, text: str) -> None:
    assert as_text(value) == text


def test_calls_after_the_end_cost_and_reach_no_node(stub: Stub) -> None:
    node = stub()
    env = make(node, SQLEnvTRLScored)
    env.reset(seed=0)
    env.answer(value="39")
    calls = len(node.calls)
    for call in (env.describe, env.sample, env.query, env.answer):
        assert call("cars") == "Error: Episode is over."
    assert len(node.calls) == calls
    assert env.penalty == pytest.approx(-0.4)
    assert operational([env]) == [pytest.approx(-0.4)]
    assert env.get_reward() == pytest.approx(0.6)
    env.reset(seed=0)
    assert env.penalty == 0.0


def test_a_spent_budget_ends_the_episode(stub: Stub) -> None:
    env = make(stub(), step_budget=1)
    env.reset(seed=0)
    env.query(sql="SELECT 1")
    assert env.query(sql="SELECT 1") == "Error: Episode is over."
    assert correctness([env]) == [0.0]


@pytest.mark.parametrize(
    ("row", "question_id"),
    [
        ({"question_id": "cars_0002", "question_text": "another", "seed": 1}, "cars_0002"),
        ({"question_id": None, "question_text": QUESTION}, "cars_0000"),
        ({"question_text": "How many rows?", "database_name": "trains"}, "cars_0002"),
        ({"question_text": None, "seed": 3.0, "prompt": [], "answer": None}, "cars_0003"),
        ({"seed": 0}, "cars_0000"),
    ],
)
def test_a_row_chooses_the_same_question_for_all_members(
    stub: Stub, row: dict[str, Any], question_id: str
) -> None:
    node = stub()
    group = [make(node) for _ in range(4)]
    assert len({env.reset(**row) for env in group}) == 1
    assert {env.episode and env.episode.question_id for env in group} == {question_id}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": []}, r"columns \['prompt'\] selects no question"),
        ({"question_text": "nowhere"}, "no question of split any has the text 'nowhere'"),
        (
            {"question_text": "How many rows?"},
            "2 questions have the text .* cars_0001, cars_0002; give question_id",
        ),
        ({"question_text": "Twin", "database_name": "cars"}, "2 questions have the text"),
    ],
)
def test_a_row_that_names_no_question_is_refused(
    stub: Stub, row: dict[str, Any], message: str
) -> None:
    env = make(stub())
    with pytest.raises(ValueError, match=message.replace("split any", "split 'any'")):
        env.reset(**row)
    assert correctness([env]) == [None]


def test_an_unknown_question_is_refused_by_the_node(stub: Stub) -> None:
    env = make(stub())
    with pytest.raises(EnvRefused, match="no question 'nope'"):
        env.reset(question_id="nope")


def test_faults_are_cured_inside(stub: Stub) -> None:
    node = stub()
    env = make(node, retry_seconds=20.0)
    env.reset(seed=0)
    node.faults = [
        Fault(grpc.StatusCode.UNAVAILABLE),
        Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, pause_seconds=0.01),
    ]
    assert env.query(sql="SELECT 1") == "1. SELECT 1"
    assert env.episode is not None and list(env.episode.observation.action_history) == [
        "QUERY SELECT 1"
    ]


@pytest.mark.parametrize("code", ["UNAVAILABLE", "FAILED_PRECONDITION", "UNAUTHENTICATED"])
def test_what_cannot_be_cured_stops_the_run_and_is_not_scored(stub: Stub, code: str) -> None:
    node = stub()
    env = make(node, SQLEnvTRLScored)
    env.reset(seed=0)
    node.faults = [Fault(grpc.StatusCode[code])] * 1_000
    with pytest.raises(RunStopped, match=r"episode [0-9a-f]{32} is lost") as stopped:
        env.query(sql="SELECT 1")
    assert not isinstance(stopped.value, Exception)
    assert isinstance(stopped.value.__cause__, EnvError)
    with pytest.raises(RunStopped, match="without an episode"):
        env.answer(value="39")
    assert [function([env]) for function in (correctness, progress, operational)] == [[None]] * 3
    assert env.get_reward() is None
    node.faults = []
    env.reset(seed=0)
    assert correctness([env]) == [0.0]


@pytest.mark.parametrize("reason", ["WALL_CLOCK", "NODE_FAULT"])
def test_what_a_node_cannot_serve_ends_its_rollout_without_a_score(
    stub: Stub, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlenv.retry.RetryPolicy.pause_seconds", lambda *_: 0.0)
    node = stub()
    env, other = (make(node, SQLEnvTRLScored, retry_seconds=20.0) for _ in range(2))
    for member in (env, other):
        member.reset(seed=0)
        member.query(sql="SELECT 1")
    node.faults = [Fault(grpc.StatusCode.UNAVAILABLE, reason=reason)] * 9
    assert env.answer(value="39") == "Error: Episode is over."
    assert isinstance(env.fault, EnvUnserved) and env.fault.reason == reason
    calls = len(node.calls)
    assert env.query(sql="SELECT 1") == "Error: Episode is over."
    assert (len(node.calls), env.penalty, env.is_over, env.scorable) == (calls, 0.0, True, False)
    assert other.answer(value="39") == "Answer submitted: correct."
    assert [function([env, other])[0] for function in (correctness, progress, operational)] == [
        None
    ] * 3
    assert correctness([env, other]) == [None, 1.0]
    assert (env.get_reward(), other.get_reward()) == (None, pytest.approx(1.15))
    env.reset(seed=0)
    assert (env.is_over, correctness([env])) == (False, [0.0])


def test_members_of_a_group_share_no_token(stub: Stub) -> None:
    node = stub()
    group = [make(node) for _ in range(4)]
    for env in group:
        env.reset(seed=0)
    assert len({env.episode.token for env in group if env.episode is not None}) == 4


def test_a_node_that_restarts_with_another_key_does_not_stop_the_run(stub: Stub) -> None:
    node = stub()
    env = make(node)
    env.reset(seed=0)
    assert env.query(sql="SELECT 1") == "1. SELECT 1"
    node.key = "another"
    assert env.answer(value="39") == "Answer submitted: correct."
    assert correctness([env]) == [1.0]


def test_rewards_are_those_of_the_layers_and_of_this_class_only(stub: Stub) -> None:
    node = stub()
    right, unplayed = make(node), make(node)
    right.reset(seed=0)
    right.query(sql="SELECT 1")
    right.answer(value="39")
    assert right.episode is not None
    layers = [
        function([right, unplayed, object()], seed=[0] * 3)
        for function in (correctness, progress, operational)
    ]
    assert layers == [
        [1.0, None, None],
        [pytest.approx(0.15), None, None],
        [pytest.approx(0.0), None, None],
    ]
    assert right.episode.episode_return == pytest.approx(sum(layer[0] or 0.0 for layer in layers))


def test_settings_come_from_the_environment_and_travel(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stub()
    monkeypatch.setenv("SQLENV_ADDRESSES", node.address)
    monkeypatch.setenv("SQLENV_STEP_BUDGET", "3")
    env = SQLEnvTRL()
    env.reset(seed=0)
    assert env.episode is not None and env.episode.observation.budget_remaining == 3
    env = pickle.loads(pickle.dumps(SQLEnvTRL.configured(step_budget=7)))()
    env.reset(seed=0)
    assert env.episode is not None and env.episode.observation.budget_remaining == 7
    monkeypatch.setenv("SQLENV_RETRY_SECONDS", "soon")
    with pytest.raises(ValueError, match="SQLENV_RETRY_SECONDS is 'soon'; give a number"):
        SQLEnvTRL()
    monkeypatch.delenv("SQLENV_RETRY_SECONDS")
    with pytest.raises(TypeError, match="step_bugdet"):
        SQLEnvTRL.configured(step_bugdet=3)
