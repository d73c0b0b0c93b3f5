"""A stub env-node that fails on demand. It has one question, and every stub accepts its tokens.

The real node is in test_real_node.py; this one exists to break at the chosen call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent import futures
from dataclasses import dataclass, field

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from sqlenv.v1 import env_pb2 as pb
from sqlenv.v1 import env_pb2_grpc

QUESTION = "How many cars are there?"
QUESTIONS = [
    pb.Question(
        question_id=f"cars_{index:04}", question_text=text, database_name=database, split="train"
    )
    for index, (text, database) in enumerate(
        [
            (QUESTION, "cars"),
            ("How many rows?", "cars"),
            ("How many rows?", "trains"),
            ("Twin", "cars"),
            ("Twin", "cars"),
        ]
    )
]
SCHEMA = "Available tables:\n- cars"
BUDGET = 5


@dataclass
class Fault:
    """A failed call."""

    code: grpc.StatusCode
    #: What RetryInfo asks for; None: no details.
    pause_seconds: float | None = None
    #: What ErrorInfo says; empty: no details.
    reason: str = ""


@dataclass
class StubNode(env_pb2_grpc.EnvServicer):
    """Serves until `stop`. The first calls return `faults` in order, whatever they are."""

    port: int = 0
    faults: list[Fault] = field(default_factory=list)
    #: Names of the calls that arrived, refused ones too.
    calls: list[str] = field(default_factory=list)
    #: What the calls carried as authorization.
    authorizations: list[str] = field(default_factory=list)
    #: PEM of key, certificate and, where clients need a certificate, of their authority.
    tls: Sequence[bytes] = ()
    #: The name of the key that signs tokens. A node that restarts with default settings has another
    #: one, as if this were changed.
    key: str = "shared"
    #: What the result of a query begins with. It stands for the data.
    result_prefix: str = "1. "

    def start(self) -> StubNode:
        # SO_REUSEPORT would let two stubs share a port and hide a mistake.
        self._server = grpc.server(
            futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)]
        )
        env_pb2_grpc.add_EnvServicer_to_server(self, self._server)
        address = f"127.0.0.1:{self.port}"
        if self.tls:
            key, certificate, *authority = self.tls
            credentials = grpc.ssl_server_credentials(
                [(key, certificate)], *authority, bool(authority)
            )
            self.port = self._server.add_secure_port(address, credentials)
        else:
            self.port = self._server.add_insecure_port(address)
        self._server.start()
        return self

    def stop(self) -> None:
        self._server.stop(grace=None).wait()

    @property
    def address(self) -> str:
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}"

    def Reset(self, request: pb.ResetRequest, context: grpc.ServicerContext) -> pb.ResetResponse:
        self._arrive("Reset", context)
        question_id = request.question_id or f"cars_{request.seed % len(QUESTIONS):04}"
        if question_id not in {question.question_id for question in QUESTIONS}:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no question {question_id!r}")
        state = {
            "episode_id": request.episode_id or f"{question_id}#{request.seed}",
            "key": self.key,
            "budget": request.step_budget or BUDGET,
            "history": [],
            "done": False,
        }
        return pb.ResetResponse(
            token=json.dumps(state).encode(),
            episode_id=state["episode_id"],
            question_id=question_id,
            observation=_observation(state),
        )

    def Step(self, request: pb.StepRequest, context: grpc.ServicerContext) -> pb.StepResponse:
        self._arrive("Step", context)
        state = json.loads(request.token)
        if state["key"] != self.key:
            fault = Fault(grpc.StatusCode.UNAUTHENTICATED, reason="TOKEN_FOREIGN_KEY")
            context.abort_with_status(rpc_status.to_status(_status(fault)))
        kind, argument = request.action.action_type, request.action.argument
        if state["done"]:
            error = pb.Observation(error="Episode is over. Reset to start another.")
            return pb.StepResponse(token=request.token, observation=_observation(state, error))
        state["history"].append(f"{kind} {argument}")
        seen, layers, correct = pb.Observation(), pb.RewardComponents(), False
        if kind == "ANSWER":
            correct = argument == "39"
            seen.result = f"Answer submitted: {'correct' if correct else 'incorrect'}."
            layers.terminal = float(correct)
        elif argument.startswith("bad"):
            seen.error = f"SQL error: {argument}"
            layers.operational = -0.02
        else:
            seen.result = f"{self.result_prefix}{argument}"
            layers.operational, layers.progress, layers.clip = 0.01, 0.15, -0.01
        state["done"] = kind == "ANSWER" or len(state["history"]) == state["budget"]
        seen.reward = layers.operational + layers.progress + layers.terminal + layers.clip
        return pb.StepResponse(
            token=json.dumps(state).encode(),
            observation=_observation(state, seen),
            reward_components=layers,
            correct=correct,
        )

    def ListQuestions(
        self, request: pb.ListQuestionsRequest, context: grpc.ServicerContext
    ) -> pb.ListQuestionsResponse:
        self._arrive("ListQuestions", context)
        # Each page has two questions, whatever page size is requested, to test paging.
        start = int(request.page_token or 0)
        following = str(start + 2) if start + 2 < len(QUESTIONS) else ""
        return pb.ListQuestionsResponse(
            questions=QUESTIONS[start : start + 2],
            next_page_token=following,
            total_size=len(QUESTIONS),
        )

    def Info(self, request: pb.InfoRequest, context: grpc.ServicerContext) -> pb.InfoResponse:
        self._arrive("Info", context)
        return pb.InfoResponse(environment_version="stub", default_step_budget=BUDGET)

    def _arrive(self, name: str, context: grpc.ServicerContext) -> None:
        self.calls.append(name)
        self.authorizations.append(
            str(dict(context.invocation_metadata()).get("authorization", ""))
        )
        if not self.faults:
            return
        context.abort_with_status(rpc_status.to_status(_status(self.faults.pop(0))))


def _status(fault: Fault) -> status_pb2.Status:
    status = status_pb2.Status(code=fault.code.value[0], message="on demand")
    if fault.pause_seconds is not None:
        delay = duration_pb2.Duration(nanos=int(fault.pause_seconds * 1e9))
        _pack(status, error_details_pb2.RetryInfo(retry_delay=delay))
    if fault.reason:
        _pack(status, error_details_pb2.ErrorInfo(reason=fault.reason, domain="sqlenv"))
    return status


def _pack(status: status_pb2.Status, detail: object) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.append(packed)


def _observation(state: dict, seen: pb.Observation | None = None) -> pb.Observation:
    observation = pb.Observation(
        question=QUESTION,
        schema_info=SCHEMA,
        step_count=len(state["history"]),
        budget_remaining=state["budget"] - len(state["history"]),
        action_history=state["history"],
        done=state["done"],
    )
    observation.MergeFrom(seen or pb.Observation())
    return observation
