"""Episodes over gRPC, on any number of env-nodes.

A signed token contains the whole state of an episode, so a step is a function of (token, action).
Any node can serve it, a retry is not applied twice, and an episode does not depend on the node that
started it. Invariant: a call returns, or raises `EnvError` and leaves the episode unchanged.
WebSockets are in client.py, and TRL is in trl_env.py.
"""

from __future__ import annotations

import copy
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc

from .channels import DEFAULT_ADDRESS, Security, open_channel, split_addresses
from .errors import EnvRefused, EnvUnreachable
from .retry import RETRIED, RetryPolicy, asked_pause_seconds, reason_of
from .v1 import env_pb2 as pb
from .v1.env_pb2_grpc import EnvStub

_PAGE_SIZE = 1_000


@dataclass
class Episode:
    """One episode, represented by its newest token. `GrpcEnv.reset` creates it."""

    _env: GrpcEnv = field(repr=False)
    #: The index of the node that responded last, which has the database open.
    _node: int = field(repr=False)
    #: The opaque state, signed by the nodes.
    token: bytes = field(repr=False)
    episode_id: str
    question_id: str
    #: The last observation.
    observation: pb.Observation = field(repr=False)
    #: The rewards by layer, summed over the episode.
    rewards: pb.RewardComponents = field(default_factory=pb.RewardComponents, repr=False)
    #: Whether the episode ended with a correct answer.
    correct: bool = False

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.observation.done

    @property
    def episode_return(self) -> float:
        """The sum of the rewards of all steps so far."""
        layers = self.rewards
        return layers.operational + layers.progress + layers.terminal + layers.clip

    def step(self, action_type: str, argument: str) -> pb.Observation:
        """Applies one action.

        Args:
            action_type: DESCRIBE, SAMPLE, QUERY or ANSWER.
            argument: A table name, SQL or the answer.

        Returns:
            The observation. Errors of the agent are in its `error`.

        Raises:
            EnvError: The step was not applied. It may be repeated.
        """
        action = pb.Action(action_type=action_type, argument=argument)
        reply, node = self._env._call(
            "Step", pb.StepRequest(token=self.token, action=action), self._node
        )
        self._node, self.token, self.observation = node, reply.token, reply.observation
        self.correct = reply.correct
        self.rewards = _sum(self.rewards, reply.reward_components)
        return self.observation

    def fork(self) -> Episode:
        """Returns a copy of the episode that continues independently from here."""
        return copy.copy(self)


class GrpcEnv:
    """A client of `sqlenv.v1.Env` that tolerates the loss of nodes. Threads may share it.

    Nodes that share episodes need the same signing key and the same data (`sqlenv env-node --set
    env.signing_key_file=…`).

    Example:
        with GrpcEnv("http://a:8000,http://b:8000") as env:
            episode = env.reset(split="train", seed=7)
            observation = episode.step("QUERY", "SELECT count(*) FROM airports")
    """

    def __init__(
        self,
        addresses: str | Iterable[str] = DEFAULT_ADDRESS,
        *,
        retry: RetryPolicy = RetryPolicy(),
        call_seconds: float = 30.0,
        security: Security = Security(),
    ) -> None:
        """Creates the client. It connects at the first call.

        Args:
            addresses: `http://host:port` or, for TLS, `https://host:port`; several as a list or
                separated by commas.
            retry: How long to retry.
            call_seconds: The deadline of one attempt.
            security: TLS files and the bearer token.
        """
        self.addresses = split_addresses(addresses)
        self.retry = retry
        self.call_seconds = call_seconds
        self._metadata = security.metadata()
        self._channels = [open_channel(address, security) for address in self.addresses]
        self._stubs = [EnvStub(channel) for channel in self._channels]  # type: ignore[no-untyped-call]
        # New episodes are distributed over the nodes in turn. The replies do not depend on the
        # node.
        self._turns = itertools.count(random.randrange(len(self._stubs)))
        self._lock = threading.Lock()

    def reset(
        self,
        *,
        question_id: str = "",
        split: str = "",
        seed: int = 0,
        episode_id: str = "",
        reward_profile: str = "",
        step_budget: int = 0,
    ) -> Episode:
        """Starts an episode.

        Args:
            question_id: The question. If empty, it is drawn from `split` by `seed`.
            split: The split to draw from. If empty, all questions.
            seed: The same seed draws the same question.
            episode_id: The id of the episode. If empty, it is derived from question and seed.
            reward_profile: `default`, `sqlenv-final` or `sqlenv-f003`. If empty, the default of the
                node.
            step_budget: The number of actions. 0 means the default of the node.

        Raises:
            EnvRefused: The question, split or profile does not exist.
            EnvUnreachable: No node responded.
        """
        request = pb.ResetRequest(
            question_id=question_id,
            split=split,
            seed=seed,
            episode_id=episode_id,
            reward_profile=reward_profile,
            step_budget=step_budget,
        )
        reply, node = self._call("Reset", request, self._next_node())
        return Episode(
            self, node, reply.token, reply.episode_id, reply.question_id, reply.observation
        )

    def list_questions(self, *, split: str = "", database_name: str = "") -> Iterator[pb.Question]:
        """Yields the questions in a stable order, without answers. Fetches pages when needed."""
        node, page_token = self._next_node(), ""
        while True:
            request = pb.ListQuestionsRequest(
                split=split,
                database_name=database_name,
                page_size=_PAGE_SIZE,
                page_token=page_token,
            )
            reply, node = self._call("ListQuestions", request, node)
            yield from reply.questions
            page_token = reply.next_page_token
            if not page_token:
                return

    def info(self) -> pb.InfoResponse:
        """Returns what the nodes serve: version, default settings, databases, splits."""
        reply: pb.InfoResponse = self._call("Info", pb.InfoRequest(), self._next_node())[0]
        return reply

    def close(self) -> None:
        """Closes the connections."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> GrpcEnv:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _next_node(self) -> int:
        with self._lock:
            return next(self._turns) % len(self._stubs)

    def _call(self, method: str, request: object, node: int) -> tuple[Any, int]:
        """Calls `node`, and after a failure the others in turn, until one answers or the time for
        retries is over.

        Returns:
            The reply and the node that gave it.
        """
        deadline: float | None = None
        asked_seconds = 0.0
        for attempt in itertools.count(1):
            stub_method: Callable[..., Any] = getattr(self._stubs[node], method)
            try:
                return stub_method(
                    request, timeout=self.call_seconds, metadata=self._metadata
                ), node
            except grpc.RpcError as failure:
                if failure.code() not in RETRIED:
                    raise self._refused(method, node, failure) from failure
                now = time.monotonic()
                deadline = deadline or now + self.retry.total_seconds
                asked_seconds = max(asked_seconds, asked_pause_seconds(failure))
                pause_seconds = 0.0
                rounds, untried = divmod(attempt, len(self._stubs))
                if untried == 0:
                    pause_seconds = self.retry.pause_seconds(rounds, asked_seconds, random.random())
                    asked_seconds = 0.0
                if now + pause_seconds > deadline:
                    raise self._unreachable(method, attempt, failure) from failure
                time.sleep(pause_seconds)
                node = (node + 1) % len(self._stubs)
        raise AssertionError("the loop ends by return or raise: this is a bug")

    def _refused(self, method: str, node: int, failure: Any) -> EnvRefused:
        message = (
            f"{self.addresses[node]} refuses {method}: {failure.details()} ({failure.code().name})"
        )
        return EnvRefused(message, failure.code(), reason_of(failure))

    def _unreachable(self, method: str, attempts: int, failure: Any) -> EnvUnreachable:
        message = (
            f"{method} failed on {', '.join(self.addresses)} "
            f"for {self.retry.total_seconds:g} s, {attempts} attempts; "
            f"the last: {failure.details()} ({failure.code().name}); "
            "start a node or correct the addresses"
        )
        return EnvUnreachable(message, failure.code(), reason_of(failure))


def _sum(left: pb.RewardComponents, right: pb.RewardComponents) -> pb.RewardComponents:
    return pb.RewardComponents(
        operational=left.operational + right.operational,
        progress=left.progress + right.progress,
        terminal=left.terminal + right.terminal,
        clip=left.clip + right.clip,
    )
