"""Tests with the binary: real episodes and killed nodes. Skipped without a binary (conftest.py)."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from real_node import RealNode
from sqlenv import EnvRefused, Episode, GrpcEnv, RetryPolicy, SQLEnvTRL
from sqlenv.rewards import correctness

Start = Callable[..., RealNode]
PATIENT = RetryPolicy(total_seconds=120.0, first_pause_seconds=0.02, longest_pause_seconds=0.2)


def actions_of(episode: Episode) -> list[tuple[str, str]]:
    """Runs a short episode with errors, several kinds of results and an answer."""
    tables = re.findall(r"^- (\w+)$", episode.observation.schema_info, re.MULTILINE)
    draw = random.Random(episode.question_id)
    table = draw.choice(tables)
    return [
        ("DESCRIBE", table),
        ("SAMPLE", table),
        ("DESCRIBE", "no_such_table"),
        ("QUERY", f"SELECT * FROM {table}"),
        ("QUERY", "SELECT nothing"),
        ("QUERY", f"SELECT count(*) FROM {table}"),
        ("ANSWER", str(draw.randrange(40))),
    ]


def play(episode: Episode) -> list[bytes]:
    return [
        episode.step(*action).SerializeToString(deterministic=True)
        for action in actions_of(episode)
    ]


def test_an_episode(real_node: Start) -> None:
    with GrpcEnv(real_node().address) as env:
        assert env.info().default_step_budget == 15
        questions = list(env.list_questions(split="train"))
        assert (
            len(questions)
            == {split.name: split.question_count for split in env.info().splits}["train"]
            > 1_000  # the questions of one page
        )
        episode = env.reset(question_id=questions[0].question_id, reward_profile="sqlenv-final")
        assert episode.observation.question == questions[0].question_text
        play(episode)
        assert episode.done
        with pytest.raises(EnvRefused) as unknown:
            env.reset(question_id="nope")
        assert unknown.value.code is grpc.StatusCode.NOT_FOUND


def test_a_node_with_other_data_is_refused(real_node: Start) -> None:
    address = real_node().address
    with GrpcEnv(address) as env:
        data_sha256 = env.info().data_sha256
    with GrpcEnv(address, data_sha256=data_sha256) as env:
        env.reset()
    with GrpcEnv(address, data_sha256="0" * 64) as env, pytest.raises(EnvRefused) as refused:
        env.reset()
    assert refused.value.reason == "FOREIGN_ENVIRONMENT"
    assert data_sha256 in str(refused.value)


def test_a_killed_node_alters_no_transcript(real_node: Start) -> None:
    undisturbed_node, first, second = (real_node() for _ in range(3))

    def play_all(env: GrpcEnv) -> list[list[bytes]]:
        episodes = [env.reset(seed=seed, split="train") for seed in range(200)]
        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(play, episodes))

    with GrpcEnv(undisturbed_node.address) as env:
        undisturbed = play_all(env)
    with GrpcEnv([first.address, second.address], retry=PATIENT) as env:
        steps, call = iter(range(1_000_000)), env._call

        def call_and_kill(method: str, request: object, node: int) -> tuple[object, int]:
            if method == "Step" and next(steps) == 600:
                first.kill()
            return call(method, request, node)

        env._call = call_and_kill  # type: ignore[method-assign]
        assert play_all(env) == undisturbed


def test_a_restarted_node_goes_on_with_the_episode(real_node: Start, quick_reconnect: None) -> None:
    node = real_node()
    with GrpcEnv(node.address, retry=PATIENT) as env:
        undisturbed = play(env.reset(seed=5))
        episode = env.reset(seed=5)
        actions = actions_of(episode)
        transcript = [
            episode.step(*action).SerializeToString(deterministic=True) for action in actions[:3]
        ]
        node.kill()
        restart = threading.Timer(0.3, node.start)
        restart.start()
        transcript += [
            episode.step(*action).SerializeToString(deterministic=True) for action in actions[3:]
        ]
        restart.join()
    assert transcript == undisturbed


def test_a_node_that_restarts_with_default_settings_replays_the_episode(
    real_node: Start, quick_reconnect: None
) -> None:
    node = real_node(signing_key="")
    with GrpcEnv(node.address, retry=PATIENT) as env:
        undisturbed = env.reset(seed=5)
        transcript = play(undisturbed)
        episode = env.reset(seed=5)
        again = []
        for index, action in enumerate(actions_of(episode)):
            if index in (0, 3, 6):
                before = episode.token
                node.kill()
                node.start()
            again.append(episode.step(*action).SerializeToString(deterministic=True))
            assert episode.token[:8] != before[:8]  # The token begins with the name of the key.
        assert again == transcript
        assert (episode.done, episode.correct) == (True, undisturbed.correct)
        assert episode.rewards == undisturbed.rewards


def test_64_environments_for_trl_at_once(real_node: Start) -> None:
    make = SQLEnvTRL.configured(addresses=real_node().address, step_budget=10, split="train")
    environments = [make() for _ in range(64)]
    # Eight groups of eight.
    first = [env.reset(seed=index // 8, prompt=[]) for index, env in enumerate(environments)]
    assert [len(set(first[start : start + 8])) for start in range(0, 64, 8)] == [1] * 8
    assert len(set(first)) > 1

    def rollout(env: SQLEnvTRL) -> list[str]:
        assert env.episode is not None
        tools = {
            "DESCRIBE": env.describe,
            "SAMPLE": env.sample,
            "QUERY": env.query,
            "ANSWER": env.answer,
        }
        return [tools[kind](argument) for kind, argument in actions_of(env.episode)]

    with ThreadPoolExecutor(16) as threads:
        transcripts = list(threads.map(rollout, environments))
    assert all(env.episode is not None and env.episode.done for env in environments)
    assert all(transcripts[index] == transcripts[index - index % 8] for index in range(64))
    assert set(correctness(environments)) <= {0.0, 1.0}
