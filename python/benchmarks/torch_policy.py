"""The shapes, tokens and steps of `sqlenv bench policy` in transformers and torch, to compare with.

On the CPU in float32, or in bfloat16 over float32 master weights (--dtype bf16); on a GPU (--device
cuda) in the latter. Attention is sdpa. The sampler is generate, on a GPU with its static cache, and
(--parts continuous) its continuous batching.

This needs torch and transformers:

    python python/benchmarks/torch_policy.py [--shapes tiny,small] [--rows 1,8,64]
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

# Hidden size, layers, heads, key-value heads, head size, feed-forward size, vocabulary.
SHAPES = {
    "tiny": (256, 4, 4, 2, 64, 768, 4096),
    "small": (512, 8, 8, 4, 64, 1536, 8192),
    "smollm2-135m": (576, 30, 9, 3, 64, 1536, 49152),
    "qwen3-0.6b": (1024, 28, 16, 8, 128, 3072, 151936),
}
# Rows of a learner step.
LARGE_SHAPES = {"smollm2-135m": 8, "qwen3-0.6b": 4}
PARTS = ["sampler", "groups", "learner", "prefix", "grpo", "continuous"]
COLUMNS = [
    "shape",
    "parameters",
    "what",
    "rows",
    "tokens a row",
    "tokens/s",
    "peak MiB",
    "time goes to",
]

GROUP_SIZE = 8
PREFIX_NEW_TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="tiny,small")
    parser.add_argument("--parts", default="")
    parser.add_argument("--rows", default="1,8,64")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--learner-rows", type=int)
    parser.add_argument("--learner-tokens", type=int)
    parser.add_argument("--prefix-tokens", type=int, default=1000)
    parser.add_argument("--micro-batch-tokens", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "f32", "bf16"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for shape in args.shapes.split(","):
        model = build(shape).to(args.device)
        model.uses_bf16 = args.dtype == "bf16" or (args.dtype == "auto" and on_gpu(model))
        size = sum(weight.numel() for weight in model.parameters())
        for cells in lines(shape, model, args):
            print(f"| {shape} | {size / 1e6:.2f} M | {' | '.join(cells)} |", flush=True)


def lines(shape: str, model: Qwen3ForCausalLM, args: argparse.Namespace) -> Iterator[list[str]]:
    all_rows = [int(rows) for rows in args.rows.split(",")]
    whole_groups = [rows for rows in all_rows if rows % GROUP_SIZE == 0]
    row_tokens = args.prompt_tokens + args.new_tokens
    budget = args.micro_batch_tokens or (640 if shape in LARGE_SHAPES else 2048)
    for part in (
        args.parts.split(",") if args.parts else PARTS[:3] if shape == "qwen3-0.6b" else PARTS[:5]
    ):
        if part == "sampler":
            for rows in all_rows:
                yield cells("sampler", rows, row_tokens, sampler(model, rows, 1, args))
        elif part == "groups":
            for rows in whole_groups:
                yield cells(
                    "sampler, groups of 8", rows, row_tokens, sampler(model, rows, GROUP_SIZE, args)
                )
        elif part == "learner":
            rows = args.learner_rows or LARGE_SHAPES.get(shape, 32)
            tokens = args.learner_tokens or (192 if shape == "tiny" else 160)
            batch = texts(range(rows), tokens, model)
            yield cells("learner", rows, tokens, *learner(model, batch, 1, budget, args))
        elif part == "prefix":
            prompt = texts([0] * GROUP_SIZE, args.prefix_tokens, model)
            completions = texts(range(1, GROUP_SIZE + 1), PREFIX_NEW_TOKENS, model)
            batch = torch.cat([prompt, completions], dim=1)
            speed, peak = learner(model, batch, args.prefix_tokens, budget, args)
            yield cells("learner, shared prompt", GROUP_SIZE, batch.shape[1], speed, peak)
        elif part == "grpo":
            for rows in whole_groups:
                speed, share = grpo(model, rows, budget, args)
                where = f"sampling {100 * share:.0f} %, learning {100 - 100 * share:.0f} %"
                yield cells("grpo", rows, row_tokens, speed, None, where)
        elif part == "continuous":
            for rows in all_rows:
                yield cells(
                    "sampler, continuous batching", rows, row_tokens, continuous(model, rows, args)
                )


def cells(
    what: str, rows: int, tokens: int, speed: float, peak: float | None = None, where: str = ""
) -> list[str]:
    return [
        what,
        str(rows),
        str(tokens),
        f"{speed:.0f}",
        "n/a" if peak is None else f"{peak:.0f}",
        where,
    ]


def build(shape: str) -> Qwen3ForCausalLM:
    hidden, layers, heads, kv_heads, head, feed_forward, vocabulary = SHAPES[shape]
    config = Qwen3Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head,
        intermediate_size=feed_forward,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).float()


def text(number: int, length: int, vocabulary: int) -> list[int]:
    """Returns the tokens of a text, as `sqlenv bench policy` makes them."""
    return [
        (number * 1_000_003 + place) * 2_654_435_761 % 2**32 * vocabulary >> 32
        for place in range(length)
    ]


def texts(numbers: range | list[int], length: int, model: Qwen3ForCausalLM) -> torch.Tensor:
    tokens = [text(number, length, model.config.vocab_size) for number in numbers]
    return torch.tensor(tokens, device=model.device)


def generate(model: Qwen3ForCausalLM, prompts: torch.Tensor, new_tokens: int) -> torch.Tensor:
    model.eval()
    with torch.inference_mode(), autocast(model):
        out = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=0,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            pad_token_id=0,
            cache_implementation="static" if on_gpu(model) else None,
        )
    # Tensors of inference mode cannot be part of an autograd graph.
    return out.clone()


def prompts_of(
    repeat: int, rows: int, sharing: int, model: Qwen3ForCausalLM, args: argparse.Namespace
) -> torch.Tensor:
    first = repeat * (rows // sharing)
    return texts([first + row // sharing for row in range(rows)], args.prompt_tokens, model)


def sampler(model: Qwen3ForCausalLM, rows: int, sharing: int, args: argparse.Namespace) -> float:
    if model.uses_bf16:
        model = copy.deepcopy(model).bfloat16()

    def sample(repeat: int) -> int:
        generate(model, prompts_of(repeat, rows, sharing, model, args), args.new_tokens)
        return rows * args.new_tokens

    return speed(sample, args.repeats)


def continuous(model: Qwen3ForCausalLM, rows: int, args: argparse.Namespace) -> float:
    model = copy.deepcopy(model).eval()
    if model.uses_bf16:
        model = model.bfloat16()
    config = GenerationConfig(
        do_sample=True,
        top_k=0,
        max_new_tokens=args.new_tokens,
        min_new_tokens=args.new_tokens,
        pad_token_id=0,
    )

    def sample(repeat: int) -> int:
        prompts = prompts_of(repeat, rows, 1, model, args).tolist()
        # The manager is persistent, so that all repeats use the graphs that it captures on a GPU.
        done = model.generate_batch(
            prompts, generation_config=config, progress_bar=False, persistent_manager=True
        )
        tokens = sum(len(row.generated_tokens) for row in done.values())
        # It logs failures and returns the other results.
        if tokens != rows * args.new_tokens:
            raise RuntimeError(
                f"continuous batching made {tokens} tokens of {rows * args.new_tokens}"
            )
        return tokens

    try:
        return speed(sample, args.repeats)
    finally:
        model.destroy_cached_continuous_batching_manager()


def learner(
    model: Qwen3ForCausalLM,
    batch: torch.Tensor,
    prompt_tokens: int,
    budget: int,
    args: argparse.Namespace,
) -> tuple[float, float | None]:
    """Measures forward, backward and AdamW: tokens per second and peak MiB."""
    step = Step(model, budget)
    advantages = torch.ones(len(batch), device=model.device)

    def learn(_: int) -> int:
        step(batch, prompt_tokens, advantages)
        return batch.numel()

    is_reset = reset_peak(model)
    measured = speed(learn, args.repeats)
    return measured, peak_mib(model) if is_reset else None


def grpo(
    model: Qwen3ForCausalLM, rows: int, budget: int, args: argparse.Namespace
) -> tuple[float, float]:
    """Measures whole policy gradient steps: tokens per second, share of sampling."""
    step = Step(model, budget)
    shares = []

    def train(repeat: int) -> int:
        start = time.perf_counter()
        batch = generate(model, prompts_of(repeat, rows, GROUP_SIZE, model, args), args.new_tokens)
        sampled = time.perf_counter() - start
        rewards = torch.randint(2, (rows // GROUP_SIZE, GROUP_SIZE), device=model.device).float()
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (
            rewards.std(1, keepdim=True) + 1e-4
        )
        step(batch, args.prompt_tokens, advantages.flatten())
        shares.append(sampled / (time.perf_counter() - start))
        return batch.numel()

    return speed(train, args.repeats), statistics.median(shares[1:])


class Step:
    """Makes one update: micro-batches of whole rows under a token budget, then AdamW."""

    def __init__(self, model: Qwen3ForCausalLM, budget: int) -> None:
        self.model = model
        self.budget = budget
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def __call__(self, batch: torch.Tensor, prompt_tokens: int, advantages: torch.Tensor) -> None:
        self.model.train()
        self.optimizer.zero_grad()
        rows, length = batch.shape
        scored = rows * (length - prompt_tokens)
        size = max(1, self.budget // length)
        for tokens, weights in zip(batch.split(size), advantages.split(size), strict=True):
            # Tokens after the last scored position are not computed, and only scored positions get
            # logits.
            kept = length - prompt_tokens
            targets = tokens[:, prompt_tokens:]
            with autocast(self.model):
                logits = self.model(input_ids=tokens[:, :-1], logits_to_keep=kept).logits
                losses = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), targets.flatten(), reduction="none"
                )
            (losses.view_as(targets) * weights[:, None]).sum().div(scored).backward()
        self.optimizer.step()


def on_gpu(model: Qwen3ForCausalLM) -> bool:
    return model.device.type == "cuda"


def autocast(model: Qwen3ForCausalLM) -> torch.autocast:
    """Enables bfloat16 if it was chosen. Weights in float32 stay in float32."""
    return torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=model.uses_bf16)


def speed(work: Callable[[int], int], repeats: int) -> float:
    """Returns tokens per second: the median of `repeats` runs after a warm-up run."""
    work(0)
    speeds = []
    for repeat in range(1, repeats + 1):
        start = time.perf_counter()
        tokens = work(repeat)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        speeds.append(tokens / (time.perf_counter() - start))
    return statistics.median(speeds)


def reset_peak(model: Qwen3ForCausalLM) -> bool:
    """Resets the peak of the memory of the GPU or of this process."""
    if on_gpu(model):
        torch.cuda.reset_peak_memory_stats()
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_mib(model: Qwen3ForCausalLM) -> float:
    if on_gpu(model):
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status").read_text()
    return next(
        int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:")
    )


if __name__ == "__main__":
    main()
