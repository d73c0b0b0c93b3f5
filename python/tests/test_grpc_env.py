"""Tests `GrpcEnv` with nodes that fail at chosen calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from sqlenv import (
    EnvDiverged,
    EnvError,
    EnvRefused,
    EnvUnreachable,
    EnvUnserved,
    Episode,
    GrpcEnv,
    RetryPolicy,
)
from stub_node import QUESTIONS, Fault, StubNode

Stub = Callable[..., StubNode]
QUICK = RetryPolicy(total_seconds=20.0, first_pause_seconds=0.01, longest_pause_seconds=0.05)
ACTIONS = [("DESCRIBE", "cars"), ("QUERY", "bad sql"), ("QUERY", "SELECT 1"), ("ANSWER", "39")]


def play(episode: Episode) -> list[bytes]:
    return [episode.step(*action).SerializeToString(deterministic=True) for action in ACTIONS]


def test_an_episode_is_played_and_its_rewards_are_summed(stub: Stub) -> None:
    with GrpcEnv(stub().address) as env:
        episode = env.reset(question_id="cars_0000", episode_id="mine", step_budget=9)
        assert (episode.episode_id, episode.question_id) == ("mine", "cars_0000")
        assert episode.observation.budget_remaining == 9
        rewards = []
        for action in ACTIONS:
            rewards.append(episode.step(*action).reward)
        assert episode.done and episode.correct
        assert episode.episode_return == pytest.approx(sum(rewards))
        assert episode.rewards.progress == pytest.approx(0.3)


def test_episodes_on_one_question_have_ids_and_tokens_of_their_own(stub: Stub) -> None:
    with GrpcEnv(stub().address) as env:
        group = [env.reset(question_id="cars_0000", seed=7) for _ in range(8)]
        assert len({episode.episode_id for episode in group}) == 8
        assert len({episode.token for episode in group}) == 8


def test_a_fork_goes_its_own_way(stub: Stub) -> None:
    with GrpcEnv(stub().address) as env:
        episode = env.reset()
        episode.step("DESCRIBE", "cars")
        twin = episode.fork()
        twin.step("ANSWER", "39")
        assert (twin.done, twin.rewards.terminal) == (True, 1.0)
        assert (episode.done, episode.rewards.terminal) == (False, 0.0)
        episode.step("QUERY", "SELECT 1")
        assert list(episode.observation.action_history) == ["DESCRIBE cars", "QUERY SELECT 1"]


def test_steps_at_once_are_applied_one_after_the_other(stub: Stub) -> None:
    with GrpcEnv(stub().address) as env:
        episode = env.reset(step_budget=9)
        with ThreadPoolExecutor(8) as threads:
            seen = list(threads.map(episode.step, ["QUERY"] * 8, map(str, range(8))))
        assert sorted(observation.step_count for observation in seen) == list(range(1, 9))
        assert episode.fork()._lock is not episode._lock


def test_text_that_utf8_cannot_encode_is_replaced(stub: Stub) -> None:
    with GrpcEnv(stub().address) as env:
        episode = env.reset(episode_id="\udc00mine")
        assert episode.episode_id == "\ufffdmine"
        assert episode.step("QUERY", "\ud83d \ud83d\ude00 é").result == "1. \ufffd 😀 é"


def test_an_argument_that_is_no_text_is_named(stub: Stub) -> None:
    with GrpcEnv(stub().address) as env:
        for action in [("ANSWER", 19), ("DESCRIBE", None)]:
            with pytest.raises(TypeError, match=f"argument is {action[1]}, .*; give a str"):
                env.reset().step(*action)
        with pytest.raises(TypeError, match="question_id is 7, of type int"):
            env.reset(question_id=7)


def test_a_closed_client_says_so(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    has_arrived, is_closed = threading.Event(), threading.Event()
    monkeypatch.setattr(StubNode, "_arrive", lambda *_: has_arrived.set() or is_closed.wait(60))
    env = GrpcEnv(stub().address, retry=QUICK)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(env.info)
        assert has_arrived.wait(60)
        env.close()
        is_closed.set()
        for failing in [call.result, env.reset]:
            with pytest.raises(EnvError, match="the client was closed; create another"):
                failing()


def test_questions_are_listed_over_all_pages(stub: Stub) -> None:
    with GrpcEnv(stub().address) as env:
        assert list(env.list_questions()) == QUESTIONS
        assert env.info().environment_version == "stub"


@pytest.mark.parametrize(
    "code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL"]
)
def test_what_another_attempt_cures_is_tried_again(stub: Stub, code: str) -> None:
    undisturbed = play(GrpcEnv(stub().address).reset())
    node = stub()
    with GrpcEnv(node.address, retry=QUICK) as env:
        episode = env.reset()
        node.faults = [Fault(grpc.StatusCode[code])] * 3
        assert play(episode) == undisturbed
    assert node.calls == ["Reset"] + ["Step"] * (3 + len(ACTIONS))


@pytest.mark.parametrize(
    "code", ["NOT_FOUND", "INVALID_ARGUMENT", "UNAUTHENTICATED", "FAILED_PRECONDITION"]
)
def test_what_no_attempt_cures_is_raised_at_once_with_its_reason(stub: Stub, code: str) -> None:
    node = stub(faults=[Fault(grpc.StatusCode[code], reason="TOKEN_FORGED")])
    with (
        GrpcEnv(node.address, retry=QUICK) as env,
        pytest.raises(EnvRefused, match="refuses Info: on demand") as refused,
    ):
        env.info()
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode[code], "TOKEN_FORGED")
    assert node.calls == ["Info"]


@pytest.mark.parametrize(
    "code",
    [
        "UNAVAILABLE",
        "RESOURCE_EXHAUSTED",
        "DEADLINE_EXCEEDED",
        "ABORTED",
        "CANCELLED",
        "INTERNAL",
        "UNKNOWN",
    ],
)
def test_what_may_pass_is_tried_again(stub: Stub, code: str) -> None:
    node = stub(faults=[Fault(grpc.StatusCode[code])])
    with GrpcEnv(node.address, retry=QUICK) as env:
        env.info()
    assert node.calls == ["Info", "Info"]


def test_the_pause_that_a_node_asks_for_is_kept(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    node = stub(
        faults=[
            Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, pause_seconds=0.25),
            Fault(grpc.StatusCode.UNAVAILABLE),
        ]
    )
    with GrpcEnv(
        node.address, retry=RetryPolicy(first_pause_seconds=0.001, longest_pause_seconds=0.001)
    ) as env:
        monkeypatch.setattr(env._is_closed, "wait", pauses.append)
        env.info()
    assert len(pauses) == 2
    assert 0.25 <= pauses[0] <= 0.251
    assert pauses[1] <= 0.001


def test_other_nodes_are_tried_before_any_pause(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pause(seconds: float) -> None:
        assert seconds == 0.0

    broken = [stub(faults=[Fault(grpc.StatusCode.UNAVAILABLE)] * 9) for _ in range(2)]
    whole = stub()
    with GrpcEnv([node.address for node in [*broken, whole]]) as env:
        monkeypatch.setattr(env._is_closed, "wait", no_pause)
        episode = env.reset()
        episode.step("DESCRIBE", "cars")
        # The episode stays with the node that has replied.
        assert whole.calls == ["Reset", "Step"]
        assert all(len(node.calls) <= 1 for node in broken)


def test_episodes_begin_on_the_nodes_in_turn(stub: Stub) -> None:
    nodes = [stub(), stub()]
    with GrpcEnv(",".join(node.address for node in nodes)) as env:
        for _ in range(10):
            env.reset()
    assert [len(node.calls) for node in nodes] == [5, 5]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("UNAUTHENTICATED", "BEARER_TOKEN_REFUSED"),
        ("UNAUTHENTICATED", ""),
        ("PERMISSION_DENIED", ""),
        ("FAILED_PRECONDITION", "FOREIGN_ENVIRONMENT"),
    ],
)
def test_a_node_that_refuses_the_caller_is_left_for_another(
    stub: Stub, code: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    fault = Fault(grpc.StatusCode[code], reason=reason)
    refusing, other = stub(faults=[fault] * 9), stub()
    with GrpcEnv([refusing.address, other.address], retry=QUICK) as env:
        for _ in range(4):  # Every second call begins at the node that refuses.
            env.reset()
        assert [len(refusing.calls), len(other.calls)] == [2, 4]
        assert caplog.text.count("calls go to the other nodes") == 1
        # The other node is away for a moment.
        other.faults = [Fault(grpc.StatusCode.UNAVAILABLE)] * 3
        env.reset()
        assert [len(refusing.calls), len(other.calls)] == [3, 8]
        other.faults = [fault]
        with pytest.raises(EnvRefused, match="refuses Reset: on demand") as refused:
            env.reset()
        assert (refused.value.code, refused.value.reason) == (fault.code, reason)
        other.stop()
        env.retry = RetryPolicy(total_seconds=0.0)
        with pytest.raises(EnvUnreachable) as unreachable:
            env.reset()
        assert unreachable.value.code is grpc.StatusCode.UNAVAILABLE


def test_an_episode_outlives_its_node(stub: Stub) -> None:
    undisturbed = play(GrpcEnv(stub().address).reset())
    first, second = stub(), stub()
    with GrpcEnv([first.address, second.address], retry=QUICK) as env:
        episodes = [env.reset() for _ in range(2)]
        played = [
            [episode.step(*ACTIONS[0]).SerializeToString(deterministic=True)]
            for episode in episodes
        ]
        first.stop()
        for episode, transcript in zip(episodes, played, strict=True):
            transcript += [
                episode.step(*action).SerializeToString(deterministic=True)
                for action in ACTIONS[1:]
            ]
    assert played == [undisturbed, undisturbed]


def test_a_replaced_node_goes_on_with_the_episode(stub: Stub, quick_reconnect: None) -> None:
    undisturbed = play(GrpcEnv(stub().address).reset())
    node = stub()
    with GrpcEnv(node.address, retry=QUICK) as env:
        episode = env.reset()
        node.stop()
        replaced = threading.Timer(0.3, lambda: stub(port=node.port))
        replaced.start()
        assert play(episode) == undisturbed
        replaced.join()


def test_an_unreachable_node_is_named_after_the_time_for_retries(stub: Stub) -> None:
    node = stub()
    retry = RetryPolicy(total_seconds=0.2, first_pause_seconds=0.01, longest_pause_seconds=0.05)
    with GrpcEnv(node.address, retry=retry) as env:
        episode = env.reset()
        before = episode.token
        node.stop()
        with pytest.raises(
            EnvUnreachable, match=f"Step failed on {node.address} for 0.2 s"
        ) as unreachable:
            episode.step("DESCRIBE", "cars")
    assert unreachable.value.code is grpc.StatusCode.UNAVAILABLE
    assert (episode.token, episode.done) == (before, False)


@pytest.mark.parametrize("reason", ["WALL_CLOCK", "NODE_FAULT", "DATABASE_BROKEN"])
def test_a_call_that_a_node_cannot_serve_is_given_up_with_its_reason(
    stub: Stub, reason: str
) -> None:
    node = stub()
    with GrpcEnv(node.address, retry=QUICK) as env:
        episode, other = env.reset(), env.reset()
        node.faults = [Fault(grpc.StatusCode.UNAVAILABLE, reason=reason)] * 9
        with pytest.raises(
            EnvUnserved, match=f"cannot serve Step in 9 attempts; the last: on demand .*{reason}"
        ) as unserved:
            episode.step("ANSWER", "39")
        assert (unserved.value.code, unserved.value.reason) == (
            grpc.StatusCode.UNAVAILABLE,
            reason,
        )
        assert node.calls == ["Reset"] * 2 + ["Step"] * 9
        assert not episode.done
        assert play(other) == play(env.reset())


def test_the_time_for_retries_ends_a_call_that_a_node_cannot_serve_sooner(stub: Stub) -> None:
    node = stub()
    with GrpcEnv(node.address, retry=RetryPolicy(total_seconds=0.0)) as env:
        node.faults = [Fault(grpc.StatusCode.UNAVAILABLE, reason="WALL_CLOCK")]
        with pytest.raises(EnvUnserved, match="in 1 attempts"):
            env.info()


@pytest.mark.parametrize(
    ("reason", "calls"), [("WALL_CLOCK", [2, 0]), ("NODE_FAULT", [1, 1]), ("", [1, 1])]
)
def test_only_a_slow_query_is_retried_at_its_node(
    stub: Stub, reason: str, calls: list[int]
) -> None:
    first, second = stub(), stub()
    with GrpcEnv([first.address, second.address], retry=QUICK) as env:
        episode = env.reset()
        node, other = (first, second) if first.calls else (second, first)
        node.calls.clear()
        node.faults = [Fault(grpc.StatusCode.UNAVAILABLE, reason=reason)]
        episode.step("QUERY", "SELECT 1")
    assert [len(node.calls), len(other.calls)] == calls


@pytest.mark.parametrize("played", range(len(ACTIONS)))
def test_a_node_with_another_key_replays_the_episode(stub: Stub, played: int) -> None:
    undisturbed = play(GrpcEnv(stub().address).reset(step_budget=9))
    node = stub()
    with GrpcEnv(node.address, retry=QUICK) as env:
        episode = env.reset(seed=3, episode_id="mine", step_budget=9)
        twin = episode.fork()
        transcript = []
        for index, action in enumerate(ACTIONS):
            if index == played:
                node.key = "another"
            transcript.append(episode.step(*action).SerializeToString(deterministic=True))
        assert transcript == undisturbed
        assert episode.correct and episode.rewards.progress == pytest.approx(0.3)
        assert episode.episode_return == pytest.approx(1.28)
        # The fork has its own history.
        assert play(twin) == undisturbed
    # The refused step, and the episode so far.
    assert node.calls.count("Step") == 2 * len(ACTIONS) + 2 + played
    assert node.calls.count("Reset") == 3


def test_an_episode_that_has_ended_is_replayed_once_with_its_actions(stub: Stub) -> None:
    node = stub()
    with GrpcEnv(node.address, retry=QUICK) as env:
        episode = env.reset()
        play(episode)
        over = episode.step("QUERY", "SELECT 1")
        node.key = "another"
        node.calls.clear()
        assert episode.step("QUERY", "SELECT 1") == over
    assert node.calls == ["Step", "Reset", *["Step"] * len(ACTIONS), "Step"]


def test_an_observation_that_the_user_has_changed_is_replayed(stub: Stub) -> None:
    node = stub()
    with GrpcEnv(node.address, retry=QUICK) as env:
        episode = env.reset()
        episode.observation.question = "another"
        episode.step("QUERY", "SELECT 1").result = "another"
        node.key = "another"
        assert episode.step("ANSWER", "39").done


def test_a_replay_with_other_observations_is_refused(stub: Stub) -> None:
    node = stub()
    with GrpcEnv(node.address, retry=QUICK) as env:
        episode = env.reset(episode_id="mine")
        episode.step("QUERY", "SELECT 1")
        before = episode.token
        node.key, node.result_prefix = "another", "2. "
        with pytest.raises(
            EnvDiverged, match=f"{node.address} returns another .* in a replay of episode mine"
        ):
            episode.step("ANSWER", "39")
        assert (episode.token, episode.done) == (before, False)


def test_an_episode_is_replayed_8_times_at_most(stub: Stub) -> None:
    node = stub()
    with GrpcEnv(node.address, retry=QUICK) as env:
        episode = env.reset()
        code = grpc.StatusCode.FAILED_PRECONDITION
        node.faults = [Fault(code, reason="TOKEN_FOREIGN_VERSION")] * 9
        with pytest.raises(EnvRefused) as refused:
            episode.step("ANSWER", "39")
        assert refused.value.reason == "TOKEN_FOREIGN_VERSION"
        assert node.calls == ["Reset", "Step", *["Reset"] * 8]
        assert episode.step("ANSWER", "39").done


@pytest.mark.parametrize("reason", ["TOKEN_FORGED", "BEARER_TOKEN_REFUSED"])
def test_a_token_that_no_replay_helps_is_refused_at_once(stub: Stub, reason: str) -> None:
    node = stub()
    with GrpcEnv(node.address, retry=QUICK) as env:
        episode = env.reset()
        node.faults = [Fault(grpc.StatusCode.UNAUTHENTICATED, reason=reason)]
        with pytest.raises(EnvRefused, match="refuses Step"):
            episode.step("ANSWER", "39")
    assert node.calls == ["Reset", "Step"]
