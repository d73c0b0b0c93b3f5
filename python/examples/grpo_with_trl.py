# %% [markdown]
# # GRPO with TRL against env-node
#
# The model explores databases by tools; env-node plays the episodes and pays the rewards. Needs a node, and TRL:
#
#     sqlenv env-node
#     pip install "trl>=1.16" "transformers>=5.2" torch
#
# `SQLENV_ADDRESSES` names the nodes, `SQLENV_MODEL` the model, `SQLENV_STEPS` the number of optimizer steps.

# %%
import os
from itertools import islice

import torch
from datasets import Dataset
from sqlenv import GrpcEnv, SQLEnvTRL
from sqlenv.rewards import correctness, operational, progress
from trl import GRPOConfig, GRPOTrainer

ADDRESSES = os.environ.get("SQLENV_ADDRESSES", "http://127.0.0.1:8000")
MODEL = os.environ.get("SQLENV_MODEL", "Qwen/Qwen3-0.6B")
STEPS = int(os.environ.get("SQLENV_STEPS", "200"))
COMPLETION_TOKENS = int(os.environ.get("SQLENV_COMPLETION_TOKENS", "1024"))
OUTPUT_DIR = os.environ.get("SQLENV_OUTPUT_DIR", "grpo-with-trl")

# %% [markdown]
# ## The questions
#
# A row names its question; `reset` appends the question and the tables to the last message. The gold answers stay on the
# node.

# %%
INSTRUCTIONS = (
    "Answer the question about the SQL database. Use only the tools, one call per turn: describe the tables you need, run a "
    "query, then answer. Give the answer as a single value, as a comma-separated list, as rows written col1 | col2, or as "
    "[] when there is nothing."
)

with GrpcEnv(ADDRESSES) as env:
    questions = list(islice(env.list_questions(split="train"), 1_000))

dataset = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": INSTRUCTIONS}], "question_id": question.question_id} for question in questions]
)
dataset[0]

# %% [markdown]
# ## The run
#
# One instance of `SQLEnvTRL` per rollout. The three rewards add up to the episode's return; they are logged apart. A node
# that dies is no event here: episodes go on elsewhere by their tokens, and a run that cannot go on stops.

# %%
on_gpu = torch.cuda.is_available()
trainer = GRPOTrainer(
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
            {name: round(entry[name], 3) for name in ("step", "reward", "rewards/correctness/mean", "tools/call_frequency")}
        )
