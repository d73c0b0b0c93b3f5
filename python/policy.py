"""Policies as Python functions, and their evaluation on questions of an environment.

A policy maps an episode to its next action. It sees what an agent sees: the observation. Evaluation
draws its questions by a seed, so that two policies with one seed have the same questions.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Protocol

from .errors import EnvUnserved
from .grpc_env import Episode, GrpcEnv

#: Two-sided 95 % of the normal distribution.
_Z = 1.959963984540054


class Policy(Protocol):
    """What decides the next action of an episode. A function with these types is a policy.

    `evaluate` calls it for several episodes at once if it has several workers.
    """

    def __call__(self, episode: Episode, /) -> tuple[str, str]:
        """Returns the type of the action (DESCRIBE, SAMPLE, QUERY, ANSWER) and its argument."""
        ...


@dataclass(frozen=True)
class EvaluationResult:
    """The episodes of a policy, in the order of their questions, and statistics of them."""

    episodes: Sequence[Episode]
    #: Why episodes failed for a reason outside the agent, by the ids of their questions. These
    #: episodes count as incorrect, with their rewards and steps so far.
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """The share of episodes that ended with a correct answer."""
        return _mean(float(episode.correct) for episode in self.episodes)

    @property
    def mean_return(self) -> float:
        """The mean sum of the rewards of an episode."""
        return _mean(episode.episode_return for episode in self.episodes)

    @property
    def mean_steps(self) -> float:
        """The mean number of actions of an episode."""
        return _mean(float(episode.observation.step_count) for episode in self.episodes)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy."""
        count, share = len(self.episodes), self.accuracy
        spread = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
        centre, divisor = share + _Z**2 / (2 * count), 1 + _Z**2 / count
        return max(0.0, (centre - spread) / divisor), min(1.0, (centre + spread) / divisor)


def evaluate(
    env: GrpcEnv,
    policy: Policy,
    n_episodes: int,
    seed: int,
    *,
    split: str = "eval",
    step_budget: int = 0,
    workers: int = 1,
) -> EvaluationResult:
    """Runs a policy on questions of a split.

    An episode that a node cannot serve, for instance because its gold SQL takes too long, is
    recorded in `failures`, and the others continue.

    Args:
        env: The environment.
        policy: The policy.
        n_episodes: The number of episodes, each on another question.
        seed: It draws the questions. The same seed draws the same ones for every policy.
        split: The split to draw from. If empty, all questions.
        step_budget: The number of actions. 0 means the default of the node.
        workers: The number of episodes at once.

    Raises:
        ValueError: The split has fewer questions than `n_episodes`, or that is not positive.
        EnvError: The environment is lost, or refuses a question.
    """
    question_ids = sorted(question.question_id for question in env.list_questions(split=split))
    if not 0 < n_episodes <= len(question_ids):
        raise ValueError(
            f"n_episodes is {n_episodes}; split {split or 'any'!r} has {len(question_ids)} "
            f"questions, so give 1 to {len(question_ids)}"
        )
    drawn = random.Random(seed).sample(question_ids, n_episodes)

    failures: dict[str, str] = {}
    is_stopped = threading.Event()

    def play(question_id: str) -> Episode:
        episode = env.reset(question_id=question_id, seed=seed, step_budget=step_budget)
        try:
            while not (episode.done or is_stopped.is_set()):
                episode.step(*policy(episode))
        except EnvUnserved as error:
            failures[question_id] = str(error)
        return episode

    if workers == 1:
        return EvaluationResult(list(map(play, drawn)), failures)
    threads = ThreadPoolExecutor(workers)
    try:
        episodes = [threads.submit(play, question_id) for question_id in drawn]
        # The first error ends the evaluation, whichever episode has it.
        for ended in wait(episodes, return_when=FIRST_EXCEPTION).done:
            ended.result()
        return EvaluationResult([episode.result() for episode in episodes], failures)
    finally:
        # After an error or Ctrl-C, episodes that wait for a node must not delay the caller.
        is_stopped.set()
        threads.shutdown(wait=False, cancel_futures=True)


def table_names(episode: Episode) -> list[str]:
    """Returns the names of the tables. Columns follow them once a table has been described."""
    _, *lines = episode.observation.schema_info.split("\n")
    return [line[2:] for line in itertools.takewhile(lambda line: line.startswith("- "), lines)]


def random_policy(seed: int = 0) -> Callable[[Episode], tuple[str, str]]:
    """Returns a policy that draws simple actions on tables of the episode.

    The draw is a function of the seed, the question and the step.
    """

    def act(episode: Episode, /) -> tuple[str, str]:
        step = episode.observation.step_count
        draw = random.Random(f"{seed}/{episode.question_id}/{step}")
        table = draw.choice(table_names(episode))
        return draw.choice(
            [
                ("DESCRIBE", table),
                ("SAMPLE", table),
                ("QUERY", f'SELECT count(*) FROM "{table}"'),
                ("QUERY", f'SELECT * FROM "{table}"'),
                ("ANSWER", str(draw.randrange(20))),
            ]
        )

    return act


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
