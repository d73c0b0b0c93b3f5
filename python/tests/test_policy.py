"""Tests evaluation: the drawing of questions, statistics, and both against the binary."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from real_node import RealNode
from sqlenv import (
    EnvRefused,
    Episode,
    EvaluationResult,
    GrpcEnv,
    Policy,
    RetryPolicy,
    evaluate,
    random_policy,
)
from sqlenv.policy import table_names
from stub_node import Fault, StubNode, grpc

Stub = Callable[..., StubNode]


def right(episode: Episode) -> tuple[str, str]:
    """Runs a query and gives the stub's answer, but only to questions with an even number."""
    if episode.observation.step_count == 0:
        return "QUERY", "SELECT 1"
    return "ANSWER", "39" if int(episode.question_id[-1]) % 2 == 0 else "0"


def ids(result: EvaluationResult) -> list[str]:
    return [episode.question_id for episode in result.episodes]


def test_an_evaluation_plays_each_drawn_question_once(stub: Stub) -> None:
    with GrpcEnv(stub().address) as env:
        result = evaluate(env, right, 5, seed=0, split="train")
        assert sorted(ids(result)) == [f"cars_{index:04}" for index in range(5)]
        assert result.accuracy == pytest.approx(3 / 5)
        assert result.mean_steps == 2
        assert result.mean_return == pytest.approx(0.15 + 3 / 5)
        assert result.interval == pytest.approx((0.2307, 0.8824), abs=1e-4)


def test_the_seed_draws_the_questions_and_nothing_else_does(stub: Stub) -> None:
    def guess(episode: Episode) -> tuple[str, str]:
        return "ANSWER", "1"

    with GrpcEnv(stub().address) as env:
        drawn = [ids(evaluate(env, right, 2, seed, split="train")) for seed in range(8)]
        assert drawn == [ids(evaluate(env, guess, 2, seed, split="train")) for seed in range(8)]
        assert len(set(map(tuple, drawn))) > 1


def test_workers_change_no_result_and_play_at_once(stub: Stub) -> None:
    together = threading.Barrier(3, timeout=60)

    def waits_for_the_others(episode: Episode) -> tuple[str, str]:
        together.wait()
        return right(episode)

    with GrpcEnv(stub().address) as env:
        alone = evaluate(env, right, 3, seed=1, split="train")
        result = evaluate(env, waits_for_the_others, 3, seed=1, split="train", workers=3)
        assert ids(result) == ids(alone)
        assert result.mean_return == alone.mean_return


@pytest.mark.parametrize("count", [0, -1, 6])
def test_a_number_of_episodes_that_the_split_has_not_is_refused(stub: Stub, count: int) -> None:
    with (
        GrpcEnv(stub().address) as env,
        pytest.raises(ValueError, match=f"n_episodes is {count}; .* give 1 to 5"),
    ):
        evaluate(env, right, count, seed=0, split="train")


def test_faults_of_the_policy_and_of_the_environment_are_raised(stub: Stub) -> None:
    def broken(episode: Episode) -> tuple[str, str]:
        raise RuntimeError("the policy is broken")

    def refused(episode: Episode) -> tuple[str, str]:
        node.faults = [Fault(grpc.StatusCode.FAILED_PRECONDITION)]
        return "QUERY", "SELECT 1"

    node = stub()
    with GrpcEnv(node.address) as env:
        with pytest.raises(RuntimeError, match="the policy is broken"):
            evaluate(env, broken, 1, seed=0, split="train")
        with pytest.raises(EnvRefused, match="refuses Step"):
            evaluate(env, refused, 1, seed=0, split="train")


def test_an_error_is_raised_without_a_wait_for_earlier_episodes(stub: Stub) -> None:
    is_raised = threading.Event()

    def broken(episode: Episode) -> tuple[str, str]:
        if episode.question_id == drawn[1]:
            raise RuntimeError("the policy is broken")
        # Only the error that the caller sees ends this episode.
        assert is_raised.wait(60)
        return right(episode)

    with GrpcEnv(stub().address) as env:
        drawn = ids(evaluate(env, right, 5, seed=0, split="train"))
        with pytest.raises(RuntimeError, match="the policy is broken"):
            evaluate(env, broken, 5, seed=0, split="train", workers=2)
        is_raised.set()


def test_an_episode_that_a_node_cannot_serve_counts_as_incorrect(stub: Stub) -> None:
    def meets_slow_gold_sql(episode: Episode) -> tuple[str, str]:
        action = right(episode)
        if episode.question_id == "cars_0002" and action[0] == "ANSWER":
            node.faults = [Fault(grpc.StatusCode.UNAVAILABLE, reason="WALL_CLOCK")] * 9
        return action

    node = stub()
    quick = RetryPolicy(first_pause_seconds=0.001, longest_pause_seconds=0.001)
    with GrpcEnv(node.address, retry=quick) as env:
        result = evaluate(env, meets_slow_gold_sql, 5, seed=0, split="train")
        assert sorted(ids(result)) == [f"cars_{index:04}" for index in range(5)]
        assert list(result.failures) == ["cars_0002"]
        assert "WALL_CLOCK" in result.failures["cars_0002"]
        assert result.accuracy == pytest.approx(2 / 5)
        assert result.mean_steps == pytest.approx(9 / 5)
        assert result.mean_return == pytest.approx(0.15 + 2 / 5)
        assert not evaluate(env, right, 5, seed=0, split="train").failures


def test_an_interrupt_ends_an_evaluation_without_a_wait_for_other_episodes(stub: Stub) -> None:
    has_begun, is_raised = threading.Event(), threading.Event()
    waiting, waited = [], []

    def interrupted(episode: Episode) -> tuple[str, str]:
        if episode.question_id == drawn[1]:
            waiting.append(threading.current_thread())
            has_begun.set()
            waited.append(is_raised.wait(60))
            return "QUERY", "SELECT 1"
        has_begun.wait(60)
        raise KeyboardInterrupt

    with GrpcEnv(stub().address) as env:
        drawn = ids(evaluate(env, right, 5, seed=0, split="train"))
        with pytest.raises(KeyboardInterrupt):
            evaluate(env, interrupted, 5, seed=0, split="train", workers=2)
        assert (len(waiting), waited) == (1, [])
        is_raised.set()
        waiting[0].join(60)
    # The other episode ends as well.
    assert waited == [True]


def test_one_worker_plays_where_python_raises_an_interrupt(stub: Stub) -> None:
    def right_here(episode: Episode) -> tuple[str, str]:
        assert threading.current_thread() is threading.main_thread()
        return right(episode)

    with GrpcEnv(stub().address) as env:
        evaluate(env, right_here, 1, seed=0, split="train")


def test_two_evaluations_at_once_share_no_episode(stub: Stub) -> None:
    with GrpcEnv(stub().address) as env:
        first, second = (evaluate(env, right, 5, seed=0, split="train") for _ in range(2))
    tokens = [episode.token for result in (first, second) for episode in result.episodes]
    assert len(set(tokens)) == 10


def test_an_interval_stays_between_0_and_1() -> None:
    def of(correct: int) -> tuple[float, float]:
        episodes: Any = [SimpleNamespace(correct=index < correct) for index in range(10)]
        return EvaluationResult(episodes).interval

    assert of(0) == pytest.approx((0.0, 0.27753), abs=1e-5)
    assert of(10) == pytest.approx((0.72247, 1.0), abs=1e-5)


def test_the_random_policy_depends_on_its_seed_and_knows_the_tables(
    real_node: Callable[[], RealNode],
) -> None:
    policies: list[Policy] = [random_policy(0), random_policy(0), random_policy(1)]
    with GrpcEnv(real_node().address) as env:
        histories = [
            [
                list(episode.observation.action_history)
                for episode in evaluate(env, policy, 30, seed=5, workers=workers).episodes
            ]
            for policy, workers in zip(policies, (1, 4, 1), strict=True)
        ]
        assert histories[0] == histories[1] != histories[2]
        episode = env.reset(split="eval", seed=1)
        tables = table_names(episode)
        assert tables
        for table in tables:
            assert not episode.step("DESCRIBE", table).error
            assert table_names(episode) == tables
