# %% [markdown]
# # An episode, and two baselines
#
# An agent receives a question about a database and the names of its tables. It can DESCRIBE and
# SAMPLE tables and QUERY. An ANSWER ends the episode. This script needs a node: run `sqlenv
# env-node` in the same folder.
#
# `SQLENV_ADDRESSES` has the addresses of nodes. `SQLENV_QUESTIONS` is the node's file of questions
# with gold answers, for the oracle. `SQLENV_EPISODES` is the number of questions for the baselines.

# %%
import json
import os
from pathlib import Path

from sqlenv import Episode, GrpcEnv, Policy, evaluate, random_policy
from sqlenv.policy import table_names
from sqlenv.trl_env import as_text

ADDRESSES = os.environ.get("SQLENV_ADDRESSES", "http://127.0.0.1:8000")
QUESTIONS = Path(os.environ.get("SQLENV_QUESTIONS", "data/build/questions/eval.jsonl"))
EPISODES = int(os.environ.get("SQLENV_EPISODES", "50"))
SEED = 0

env = GrpcEnv(ADDRESSES)
[f"{split.name}: {split.question_count}" for split in env.info().splits]

# %% [markdown]
# ## An episode
#
# The same seed draws the same question.

# %%
episode = env.reset(split="train", seed=7)
print(episode.observation.question)
print(episode.observation.schema_info)

# %%
table = table_names(episode)[0]
observation = episode.step("DESCRIBE", table)
print(observation.result)

# %% [markdown]
# An error of the agent is an observation as well, and uses up a step.

# %%
observation = episode.step("QUERY", f"SELECT no_such_column FROM {table}")
print(observation.error, observation.reward, observation.budget_remaining, sep="\n")

# %% [markdown]
# An episode is a value. A fork continues independently and does not change this episode.

# %%
guess = episode.fork()
print(
    guess.step("ANSWER", "42").result,
    "· over:",
    guess.done,
    "· the episode itself:",
    episode.done,
)

# %% [markdown]
# ## Two baselines
#
# A policy maps an episode to its next action (`sqlenv.Policy`). The random policy draws simple
# actions. The oracle knows the gold SQL and the gold answer of each question, and shows the highest
# return of an episode. `evaluate` draws the questions by its seed, so both have the same ones.


# %%
def oracle_policy(solutions: dict[str, dict]) -> Policy:
    """Describes the tables of the gold SQL, runs the gold SQL, and answers."""

    def act(episode: Episode) -> tuple[str, str]:
        solution = solutions[episode.question_id]
        actions = [("DESCRIBE", table) for table in solution["tables_involved"]]
        actions += [("QUERY", solution["gold_sql"]), ("ANSWER", as_text(solution["gold_answer"]))]
        return actions[episode.observation.step_count]

    return act


# %%
baselines = {"random": evaluate(env, random_policy(), EPISODES, SEED)}
if QUESTIONS.is_file():
    with QUESTIONS.open(encoding="utf-8") as lines:
        solutions = {record["question_id"]: record for record in map(json.loads, lines)}
    baselines["oracle"] = evaluate(env, oracle_policy(solutions), EPISODES, SEED)
else:
    print(
        f"no oracle: {QUESTIONS} is missing; set SQLENV_QUESTIONS to the node's file of questions"
    )

for name, result in baselines.items():
    low, high = result.interval
    print(
        f"{name}: {100 * result.accuracy:.1f} % correct ({100 * low:.1f} to {100 * high:.1f}),"
        f" return {result.mean_return:.3f}, {result.mean_steps:.1f} steps"
    )
