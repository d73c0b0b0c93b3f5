# %% [markdown]
# # GRPO with TRL against env-node
#
# The model explores databases with tools. env-node runs the episodes and computes the rewards. This
# script needs a node and TRL:
#
#     sqlenv env-node
#     pip install "trl==1.16.0" "transformers>=5.13" torch
#
# `SQLENV_ADDRESSES` has the addresses of nodes, `SQLENV_MODEL` the model, `SQLENV_STEPS` the number
# of optimizer steps, and `SQLENV_SEED` the seed. The model may be one of this project: the folder
# `model` of a run, `checkpoints/step_N/hf` in it, or `policy/embedded`.

# %%
import os
import random

import torch
from datasets import Dataset
from sqlenv import EpisodeRollouts, GrpcEnv, SQLEnvTRL
from sqlenv.rendering import opening
from sqlenv.rewards import correctness, operational, progress
from trl import GRPOConfig, GRPOTrainer

ADDRESSES = os.environ.get("SQLENV_ADDRESSES", "http://127.0.0.1:8000")
MODEL = os.environ.get("SQLENV_MODEL", "Qwen/Qwen3-0.6B")
STEPS = int(os.environ.get("SQLENV_STEPS", "200"))
COMPLETION_TOKENS = int(os.environ.get("SQLENV_COMPLETION_TOKENS", "1024"))
SEED = int(os.environ.get("SQLENV_SEED", "0"))
OUTPUT_DIR = os.environ.get("SQLENV_OUTPUT_DIR", "grpo-with-trl")

# %% [markdown]
# ## The questions
#
# A row selects its question. `reset` appends the question and the tables to the last message, which
# `opening` leaves empty, so that the prompt is the one that this project's own actors use. The gold
# answers stay on the node. The questions of a split are ordered by database, so they are shuffled.

# %%
with GrpcEnv(ADDRESSES) as env:
    questions = list(env.list_questions(split="train"))
random.Random(SEED).shuffle(questions)

dataset = Dataset.from_list(
    [{"prompt": opening(), "question_id": question.question_id} for question in questions]
)
dataset[0]

# %% [markdown]
# ## The run
#
# `EpisodeRollouts` ends a rollout with its episode. `GRPOTrainer` alone asks the model for another
# turn after the answer. Each rollout has one instance of `SQLEnvTRL`. The three rewards add up to
# the return of the episode and are logged separately. If a node is lost, its episodes continue on
# other nodes by their tokens. If no node is left, the run stops.

# %%
on_gpu = torch.cuda.is_available()


class Trainer(EpisodeRollouts, GRPOTrainer):
    """Rollouts end with their episodes."""


trainer = Trainer(
    model=MODEL,
    train_dataset=dataset,
    environment_factory=SQLEnvTRL.configured(addresses=ADDRESSES, step_budget=10),
    reward_funcs=[correctness, progress, operational],
    args=GRPOConfig(
        output_dir=OUTPUT_DIR,
        max_steps=STEPS,
        num_generations=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4 if on_gpu else 1,
        max_completion_length=COMPLETION_TOKENS,
        max_tool_calling_iterations=12,
        chat_template_kwargs={"enable_thinking": False},
        learning_rate=5e-6,
        seed=SEED,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=not on_gpu,
        bf16=on_gpu,
    ),
)
trainer.train()

# %% [markdown]
# ## What came out

# %%
for entry in trainer.state.log_history:
    if "reward" in entry:
        print(
            {
                name: round(entry[name], 3)
                for name in ("step", "reward", "rewards/correctness/mean", "tools/call_frequency")
            }
        )
