"""Episodes over gRPC, on any number of env-nodes.

A signed token contains the whole state of an episode, so a step is a function of (token, action).
Any node can serve it, a retry is not applied twice, and an episode does not depend on the node that
started it. If a node rejects the token, for instance because it lost its key, the client replays
the episode. Invariant: a call returns, or raises `EnvError` and leaves the episode unchanged.
WebSockets are in client.py, and TRL is in trl_env.py.
"""

from __future__ import annotations

import copy
import itertools
import logging
import random
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc

from .channels import DEFAULT_ADDRESS, Security, open_channel, split_addresses
from .errors import EnvDiverged, EnvError, EnvRefused, EnvUnreachable, EnvUnserved
from .retry import (
    MAX_REPLAYS,
    MAX_UNSERVED,
    REPLAYED,
    RETRIED,
    SLOW_QUERY,
    UNSERVED,
    RetryPolicy,
    asked_pause_seconds,
    reason_of,
    refuses_caller,
)
from .v1 import env_pb2 as pb
from .v1.env_pb2_grpc import EnvStub

_PAGE_SIZE = 1_000
_log = logging.getLogger(__name__)


@dataclass
class Episode:
    """One episode, represented by its newest token. `GrpcEnv.reset` creates it.

    If several threads call `step`, the actions are applied one after the other.
    """

    _env: GrpcEnv = field(repr=False)
    #: The index of the node that responded last, which has the database open.
    _node: int = field(repr=False)
    #: The request that starts the episode again, for a replay.
    _request: pb.ResetRequest = field(repr=False)
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
    #: The actions so far and their observations, for a replay.
    _history: tuple[tuple[pb.Action, pb.Observation], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        # A replay compares with copies, because the user may change an observation.
        self._first = copy.deepcopy(self.observation)
        self._lock = threading.Lock()

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
            TypeError: An argument is not text.
        """
        action = pb.Action(
            action_type=_text("action_type", action_type), argument=_text("argument", argument)
        )
        with self._lock:
            reply, node = self._apply(action)
            if not self.done:  # No action changes the episode after its end.
                self._history = (*self._history, (action, copy.deepcopy(reply.observation)))
            self._node, self.token, self.observation = node, reply.token, reply.observation
            self.correct = reply.correct
            self.rewards = _sum(self.rewards, reply.reward_components)
            return self.observation

    def fork(self) -> Episode:
        """Returns a copy of the episode that continues independently from here."""
        with self._lock:
            twin = copy.copy(self)
        twin._lock = threading.Lock()
        return twin

    def _apply(self, action: pb.Action) -> tuple[pb.StepResponse, int]:
        """Sends an action. If the node rejects the token, this replays the episode first."""
        token, node = self.token, self._node
        for replays in itertools.count():
            try:
                if replays:
                    token, node = self._replay()
                return self._env._call("Step", pb.StepRequest(token=token, action=action), node)
            except EnvRefused as refused:
                if refused.reason not in REPLAYED or replays == MAX_REPLAYS:
                    raise
                _log.info("episode %s is replayed: %s", self.episode_id, refused)
                time.sleep(self._env.retry.first_pause_seconds)
        raise AssertionError("the loop ends by return or raise: this is a bug")

    def _replay(self) -> tuple[bytes, int]:
        """Starts the episode again and sends its actions again.

        Returns:
            The token after the last action, and the node that signed it.
        """
        reply, node = self._env._call("Reset", self._request, self._node)
        self._check_same("Reset", node, reply.observation, self._first)
        for action, observation in self._history:
            request = pb.StepRequest(token=reply.token, action=action)
            reply, node = self._env._call("Step", request, node)
            self._check_same("Step", node, reply.observation, observation)
        return reply.token, node

    def _check_same(
        self, method: str, node: int, again: pb.Observation, before: pb.Observation
    ) -> None:
        # The agent has acted on the old observations. With others, the rollout would describe an
        # episode that never happened.
        if again != before:
            raise EnvDiverged(
                f"{self._env.addresses[node]} returns another observation of {method} than before, "
                f"in a replay of episode {self.episode_id}; serve the same data with the same "
                "settings on all nodes",
                grpc.StatusCode.DATA_LOSS,
            )


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
        data_sha256: str = "",
    ) -> None:
        """Creates the client. It connects at the first call.

        Args:
            addresses: `http://host:port` or, for TLS, `https://host:port`; several as a list or
                separated by commas.
            retry: How long to retry.
            call_seconds: The deadline of one attempt.
            security: TLS files and the bearer token.
            data_sha256: The data on which episodes must be played, as `info().data_sha256` names
                it. A node that serves other data refuses `reset`. If empty, any will do.

        Raises:
            ValueError: An address or a file of `security` cannot be used.
            OSError: A file of `security` cannot be read.
        """
        self.addresses = split_addresses(addresses)
        self.data_sha256 = data_sha256
        self.retry = retry
        self.call_seconds = call_seconds
        self._metadata = security.metadata()
        self._channels = [open_channel(address, security) for address in self.addresses]
        self._stubs = [EnvStub(channel) for channel in self._channels]  # type: ignore[no-untyped-call]
        # New episodes are distributed over the nodes in turn. The replies do not depend on the
        # node.
        self._turns = itertools.count(random.randrange(len(self._stubs)))
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        #: The nodes that have refused this client.
        self._refusing: set[int] = set()

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
            episode_id: The id of the episode. If empty, it is random. A node recognises a retried
                step by its token, so episodes on one question must have different ids. Otherwise
                a slow query of one is taken for a retry of another.
            reward_profile: `default`, `sqlenv-final` or `sqlenv-f003`. If empty, the default of the
                node.
            step_budget: The number of actions. 0 means the default of the node.

        Raises:
            EnvRefused: The question, split or profile does not exist, or all nodes serve other data
                than `data_sha256`.
            EnvUnreachable: No node responded.
            EnvUnserved: A node responded, but could not serve the call.
            TypeError: An argument has another type.
        """
        request = pb.ResetRequest(
            question_id=_text("question_id", question_id),
            split=_text("split", split),
            seed=seed,
            episode_id=_text("episode_id", episode_id or uuid.uuid4().hex),
            reward_profile=_text("reward_profile", reward_profile),
            step_budget=step_budget,
            data_sha256=self.data_sha256,
        )
        reply, node = self._call("Reset", request, self._next_node())
        # A replay starts this question, also where the seed draws another one by now.
        request.question_id = reply.question_id
        return Episode(
            _env=self,
            _node=node,
            _request=request,
            token=reply.token,
            episode_id=reply.episode_id,
            question_id=reply.question_id,
            observation=reply.observation,
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
        """Closes the connections. Calls in flight and later ones raise `EnvError`."""
        self._is_closed.set()
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
        """Calls `node`, and after a failure the others in turn, until one answers, the time for
        retries is over, all refuse the caller, or one has said too often that it cannot serve the
        call.

        Returns:
            The reply and the node that gave it.
        """
        nodes = deque(range(len(self._stubs)))
        nodes.rotate(-node)
        deadline: float | None = None
        asked_seconds = 0.0
        rounds = tried = 0
        last: Any = None
        unserved: Counter[int] = Counter()
        for attempt in itertools.count(1):
            node = nodes[0]
            try:
                return self._attempt(method, request, node), node
            except grpc.RpcError as failure:
                if is_refusal := refuses_caller(failure):
                    # Data and tokens are changed on one node after the other.
                    nodes.popleft()
                if not nodes or not (is_refusal or failure.code() in RETRIED):
                    raise self._refused(method, node, failure) from failure
                if is_refusal:
                    self._warn_of(method, node, failure)
                    if tried < len(nodes):
                        continue
                else:
                    last, tried = failure, tried + 1
                    asked_seconds = max(asked_seconds, asked_pause_seconds(failure))
                now = time.monotonic()
                deadline = deadline or now + self.retry.total_seconds
                reason = reason_of(failure)
                pause_seconds = 0.0
                if tried == len(nodes) or reason == SLOW_QUERY:
                    rounds, tried = rounds + 1, 0
                    pause_seconds = self.retry.pause_seconds(rounds, asked_seconds, random.random())
                    asked_seconds = 0.0
                is_over = now + pause_seconds > deadline
                if reason in UNSERVED:
                    unserved[node] += 1
                    if is_over or unserved[node] == MAX_UNSERVED:
                        raise self._unserved(method, node, attempt, failure) from failure
                if is_over:
                    raise self._unreachable(method, attempt, last) from last
                self._is_closed.wait(pause_seconds)
                if not is_refusal and reason != SLOW_QUERY:
                    nodes.rotate(-1)
        raise AssertionError("the loop ends by return or raise: this is a bug")

    def _attempt(self, method: str, request: object, node: int) -> Any:
        """Calls one node once."""
        stub_method: Callable[..., Any] = getattr(self._stubs[node], method)
        try:
            return stub_method(request, timeout=self.call_seconds, metadata=self._metadata)
        except (grpc.RpcError, ValueError) as failure:
            # A closed channel raises ValueError, and cancels the calls in flight.
            if self._is_closed.is_set():
                raise EnvError(
                    f"{method} failed because the client was closed; create another GrpcEnv",
                    grpc.StatusCode.CANCELLED,
                ) from failure
            raise

    def _warn_of(self, method: str, node: int, failure: Any) -> None:
        """Says once of each node that it refuses this client."""
        if node not in self._refusing:
            self._refusing.add(node)
            _log.warning("%s; calls go to the other nodes", self._refused(method, node, failure))

    def _refused(self, method: str, node: int, failure: Any) -> EnvRefused:
        message = (
            f"{self.addresses[node]} refuses {method}: {failure.details()} ({failure.code().name})"
        )
        return EnvRefused(message, failure.code(), reason_of(failure))

    def _unserved(self, method: str, node: int, attempts: int, failure: Any) -> EnvUnserved:
        reason = reason_of(failure)
        message = (
            f"{self.addresses[node]} responds, but cannot serve {method} in {attempts} attempts; "
            f"the last: {failure.details()} ({failure.code().name}, {reason})"
        )
        return EnvUnserved(message, failure.code(), reason)

    def _unreachable(self, method: str, attempts: int, failure: Any) -> EnvUnreachable:
        message = (
            f"{method} failed on {', '.join(self.addresses)} "
            f"for {self.retry.total_seconds:g} s, {attempts} attempts; "
            f"the last: {failure.details()} ({failure.code().name}); "
            "start a node or correct the addresses"
        )
        return EnvUnreachable(message, failure.code(), reason_of(failure))


def _text(name: str, value: object) -> str:
    """Returns an argument as UTF-8 can encode it: lone surrogates become U+FFFD, as in OpenEnv."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, of type {type(value).__name__}; give a str")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _sum(left: pb.RewardComponents, right: pb.RewardComponents) -> pb.RewardComponents:
    return pb.RewardComponents(
        operational=left.operational + right.operational,
        progress=left.progress + right.progress,
        terminal=left.terminal + right.terminal,
        clip=left.clip + right.clip,
    )
