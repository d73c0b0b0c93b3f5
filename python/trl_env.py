"""SQLEnv for TRL's `environment_factory`: an instance per rollout, with the tools as methods.

Invariant: a tool returns the reply of the environment and nothing else. Faults of nodes are retried
inside, and the token resumes the episode. A permanent fault raises `RunStopped`, which TRL does not
catch. If a node cannot serve one episode, only its rollout ends, without a score. Errors of the
model (bad SQL, missing or extra arguments, calls after the end) are text. The descriptions of the
tools are those of this project's own actors, so that prompts agree. The rewards are in rewards.py,
and what `GRPOTrainer` has to do differently is in trl_rollouts.py.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from .channels import DEFAULT_ADDRESS, Security
from .errors import EnvError, EnvUnserved, RunStopped
from .grpc_env import Episode, GrpcEnv
from .rendering import question_text, tool_text
from .retry import RetryPolicy

#: The reward of each call after the end of an episode, as in SQLEnv's adapter.
POST_EPISODE_PENALTY = -0.1
_OVER = "Error: Episode is over."
_log = logging.getLogger(__name__)

Tool = TypeVar("Tool", bound=Callable[..., str])


@dataclass(frozen=True)
class Settings:
    """Settings of an `SQLEnvTRL`. Environment variables `SQLENV_` + NAME set the defaults."""

    #: The addresses of env-nodes, separated by commas.
    addresses: str = DEFAULT_ADDRESS
    #: The split in which questions are looked up by text and drawn by seed. If empty, all splits.
    #: The column `split` of a row has priority.
    split: str = ""
    #: The number of actions per episode. 0 means the default of the node.
    step_budget: int = 0
    #: The reward profile. If empty, the default of the node.
    reward_profile: str = ""
    #: The number of seconds for which failed calls are retried before the run stops.
    retry_seconds: float = RetryPolicy.total_seconds
    #: The files of `Security`. An empty text means none.
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    bearer_token_file: str = ""

    @classmethod
    def from_environment(cls) -> Settings:
        """Returns the defaults, overridden by environment variables.

        Raises:
            ValueError: A variable for a number has another value.
        """
        given: dict[str, Any] = {}
        for setting in fields(cls):
            name = f"SQLENV_{setting.name.upper()}"
            if text := os.environ.get(name, ""):
                try:
                    given[setting.name] = type(getattr(cls, setting.name))(text)
                except ValueError as error:
                    raise ValueError(f"{name} is {text!r}; give a number") from error
        return cls(**given)


def _tool(method: Tool) -> Tool:
    """Calls `method` with its parameter as text. Other arguments of the model are ignored.

    `wraps` keeps the signature and the docstring, from which TRL builds the schema of the tool.
    """
    (parameter,) = [name for name in method.__annotations__ if name != "return"]

    @functools.wraps(method)
    def call(self: SQLEnvTRL, /, *positional: object, **arguments: object) -> str:
        value = positional[0] if positional else arguments.get(parameter)
        return method(self, as_text(value))

    return call  # type: ignore[return-value]


class SQLEnvTRL:
    """A SQL database to explore with tools, for `GRPOTrainer(environment_factory=SQLEnvTRL, …)`.

    Each row of the dataset selects its question: by `question_id`, by `question_text` (with
    `database_name` and `split` if the text is not unique), or by `seed`. The same row selects the
    same question for every member of a group.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        """Creates the environment. The default settings come from environment variables.

        The client connects at the first reset.
        """
        self._settings = settings or Settings.from_environment()
        self._calls_after_end = 0
        #: The episode. None before the first reset and after a failed reset.
        self.episode: Episode | None = None
        #: The fault by which the episode is lost, or None.
        self.fault: EnvError | None = None

    @classmethod
    def configured(cls, **settings: Any) -> Callable[[], SQLEnvTRL]:
        """Returns a picklable `environment_factory` with these `Settings`."""
        return functools.partial(cls, replace(Settings.from_environment(), **settings))

    @property
    def scorable(self) -> bool:
        """Whether there is an episode that no fault has interrupted."""
        return self.episode is not None and self.fault is None

    @property
    def is_over(self) -> bool:
        """Whether the rollout is over: its episode has ended, or a node cannot serve it."""
        has_ended = self.episode is not None and self.episode.done
        return has_ended or isinstance(self.fault, EnvUnserved)

    @property
    def penalty(self) -> float:
        """The sum of the penalties for calls after the end, 0 or less."""
        return POST_EPISODE_PENALTY * self._calls_after_end

    def reset(self, **row: Any) -> str:
        """Starts an episode on the question of the row and returns the question and the tables.

        TRL appends the text to the last message of the row without a separator. A message that is
        empty, as that of `rendering.opening`, becomes the one with which an actor begins.
        """
        self.episode, self.fault, self._calls_after_end = None, None, 0
        settings = self._settings
        client = client_of(settings, os.getpid())
        self.episode = client.env.reset(
            **client.question_of(row, settings.split),
            reward_profile=settings.reward_profile,
            step_budget=settings.step_budget,
        )
        return _separator(row) + question_text(self.episode.observation)

    @_tool
    def describe(self, table_name: str) -> str:
        """Show the columns, their types and the row count of one table.

        Args:
            table_name: Name of the table to describe.

        Returns:
            One line per column, then the row count.
        """
        return self._step("DESCRIBE", table_name)

    @_tool
    def sample(self, table_name: str) -> str:
        """Show up to five rows of one table.

        Args:
            table_name: Name of the table to sample.

        Returns:
            The rows, one per line.
        """
        return self._step("SAMPLE", table_name)

    @_tool
    def query(self, sql: str) -> str:
        """Run one read-only SQL query and show at most 20 rows.

        Args:
            sql: A single SELECT statement.

        Returns:
            The rows, one per line, or an error message.
        """
        return self._step("QUERY", sql)

    @_tool
    def answer(self, value: str) -> str:
        """Submit the final answer and end the episode.

        Args:
            value: The answer: a single value, a comma-separated list, or rows written as
                col1 | col2.

        Returns:
            The result of the check.
        """
        return self._step("ANSWER", value)

    def _step(self, action_type: str, argument: str) -> str:
        if isinstance(self.fault, EnvUnserved):
            return _OVER
        if self.episode is None or self.fault is not None:
            raise RunStopped(
                "a tool was called without an episode; call reset first"
            ) from self.fault
        if self.episode.done:
            self._calls_after_end += 1
            return _OVER
        try:
            return tool_text(self.episode.step(action_type, argument))
        except EnvUnserved as fault:
            # One question whose gold SQL takes too long must not stop the run. TRL gives a rollout
            # without a score no advantage, and the text says nothing about the fault.
            self.fault = fault
            _log.warning("a rollout on %s gets no score: %s", self.episode.question_id, fault)
            return _OVER
        except EnvError as fault:
            self.fault = fault
            raise RunStopped(f"episode {self.episode.episode_id} is lost: {fault}") from fault


class SQLEnvTRLScored(SQLEnvTRL):
    """An `SQLEnvTRL` that computes its reward, for asynchronous GRPO."""

    def get_reward(self) -> float | None:
        """Returns the return of the episode with penalties, or None without a score."""
        if self.episode is None or not self.scorable:
            return None
        return self.episode.episode_return + self.penalty


def as_text(value: object) -> str:
    """Converts an argument of a tool call, which may be any JSON value, to text."""
    if value is None:
        return ""
    if isinstance(value, str):
        # JSON can contain lone surrogates, which UTF-8 cannot encode.
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        if not value:
            return "[]"
        if any(isinstance(item, list) for item in value):
            return "\n".join(
                " | ".join(map(as_text, row)) if isinstance(row, list) else as_text(row)
                for row in value
            )
        return ", ".join(map(as_text, value))
    return as_text(json.dumps(value, ensure_ascii=False))


def _separator(row: Mapping[str, Any]) -> str:
    """Returns what comes between the last message of the row's prompt and the question."""
    prompt = row.get("prompt")
    content = prompt[-1].get("content") if isinstance(prompt, list) and prompt else ""
    return "\n\n" if content else ""


@dataclass
class QuestionClient:
    """A client with its index of questions, shared by all instances with one configuration."""

    env: GrpcEnv
    #: By split, text and database: the ids of the questions.
    _ids: dict[str, dict[str, dict[str, list[str]]]] = field(default_factory=dict)

    def question_of(self, row: Mapping[str, Any], default_split: str) -> dict[str, Any]:
        """Returns the arguments of `GrpcEnv.reset` that select the question of the row."""
        split = row.get("split") or default_split
        if question_id := row.get("question_id"):
            return {"question_id": str(question_id)}
        if text := row.get("question_text"):
            return {"question_id": self._by_text(str(text), str(split), row.get("database_name"))}
        if (seed := row.get("seed")) is not None:
            return {"split": str(split), "seed": int(seed)}
        raise ValueError(
            f"the row with columns {sorted(row)} selects no question; give question_id, "
            "question_text or seed, so that all members of a group get the same one"
        )

    def _by_text(self, text: str, split: str, database_name: Any) -> str:
        if split not in self._ids:
            self._ids[split] = self._index(split)
        by_database = self._ids[split].get(text, {})
        found = [
            question_id
            for database, ids in sorted(by_database.items())
            if database_name in (None, "", database)
            for question_id in ids
        ]
        if not found:
            raise ValueError(
                f"no question of split {split or 'any'!r} has the text {text!r}; give question_id"
            )
        if len(found) > 1:
            shown: Sequence[str] = found[:5]
            raise ValueError(
                f"{len(found)} questions have the text {text!r}, among them {', '.join(shown)}; "
                "give question_id, or database_name and split"
            )
        return found[0]

    def _index(self, split: str) -> dict[str, dict[str, list[str]]]:
        index: dict[str, dict[str, list[str]]] = {}
        for question in self.env.list_questions(split=split):
            by_database = index.setdefault(question.question_text, {})
            by_database.setdefault(question.database_name, []).append(question.question_id)
        return index


@functools.cache
def client_of(settings: Settings, process_id: int) -> QuestionClient:
    """Returns the client of these settings. Each process has its own, because of forks."""
    security = Security(
        settings.ca_file or None,
        settings.certificate_file or None,
        settings.key_file or None,
        settings.bearer_token_file or None,
    )
    retry = RetryPolicy(total_seconds=settings.retry_seconds)
    return QuestionClient(GrpcEnv(settings.addresses, retry=retry, security=security))
