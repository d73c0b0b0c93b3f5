"""The runtime graders of openenv 0.10.0 on one episode of the server at argv[1]; prints one line for each.

Left out, since they judge no running server: runtime.startup is the outcome of a provider that builds an image and starts
its container; runtime.network_policy reads what such a provider measured in the container's network namespace.
"""

import sys
from types import SimpleNamespace

from openenv.validation.graders.runtime import basic
from openenv.validation.manifest import RewardDeclaration
from openenv.validation.runtime.collector import collect_runtime_evidence
from openenv.validation.runtime.contracts import RuntimePlan

PLAN = {
    "plan_schema_version": "1",
    "reset": {"episode_id": "graded", "seed": 7, "options": {"split": "train"}},
    "actions": [
        {"action_type": "DESCRIBE", "argument": "Cars"},
        {"action_type": "SAMPLE", "argument": "makers"},
        {"action_type": "QUERY", "argument": "SELECT count(*) FROM Cars"},
        {"action_type": "QUERY", "argument": "SELECT Salary FROM Cars"},
        {"action_type": "LOOK", "argument": ""},
        {"action_type": "ANSWER", "argument": "40"},
    ],
}

evidence = collect_runtime_evidence(
    sys.argv[1], RuntimePlan.model_validate(PLAN), episode_timeout_s=30
)
assert evidence.failure_reason is None, evidence.failure_reason
operations = [exchange.operation for exchange in evidence.exchanges]
assert operations == ["reset", "state"] + ["step", "state"] * len(PLAN["actions"]), operations

reward = RewardDeclaration(range=(-0.18, 1.0), floor_margin=0.1)
subject = SimpleNamespace(
    runtime_evidence=evidence, manifest=SimpleNamespace(reward=reward)
)
for grader in (
    basic.RewardWellFormedGrader,
    basic.ObservationSchemaGrader,
    basic.StateContractGrader,
):
    result = grader().run(subject)
    assert result.status.value == "pass", result
    print(result.check_id)
