"""The peer of `sqlenv bench policy`: the same shapes in transformers and torch, on the CPU in float32.

python python/benchmarks/torch_policy.py [--shapes tiny,small] [--rows 1,8,64]    # needs torch and transformers
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

# Hidden, layers, heads, key-value heads, head, feed-forward, vocabulary.
SHAPES = {
    "tiny": (256, 4, 4, 2, 64, 768, 4096),
    "small": (512, 8, 8, 4, 64, 1536, 8192),
    "qwen3-0.6b": (1024, 28, 16, 8, 128, 3072, 151936),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="tiny,small")
    parser.add_argument("--rows", default="1,8,64")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--learner-rows", type=int, default=32)
    parser.add_argument("--learner-tokens", type=int, default=192)
    parser.add_argument("--micro-batch-rows", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("| shape | parameters | what | rows | tokens/s |\n|---|---|---|---|---|")
    for shape in args.shapes.split(","):
        model = build(shape)
        size = sum(weight.numel() for weight in model.parameters())
        for rows in map(int, args.rows.split(",")):
            print(f"| {shape} | {size / 1e6:.2f} M | sampler | {rows} | {sampler(model, rows, args):.0f} |", flush=True)
        print(f"| {shape} | {size / 1e6:.2f} M | learner | {args.learner_rows} | {learner(model, args):.0f} |", flush=True)


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


def sampler(model: Qwen3ForCausalLM, rows: int, args: argparse.Namespace) -> float:
    model.eval()
    prompts = torch.randint(model.config.vocab_size, (rows, args.prompt_tokens))

    def generate() -> int:
        with torch.inference_mode():
            out = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                top_k=0,
                max_new_tokens=args.new_tokens,
                min_new_tokens=args.new_tokens,
                pad_token_id=0,
            )
        return rows * (out.shape[1] - args.prompt_tokens)

    return speed(generate, args.repeats)


def learner(model: Qwen3ForCausalLM, args: argparse.Namespace) -> float:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    tokens = torch.randint(model.config.vocab_size, (args.learner_rows, args.learner_tokens))

    def step() -> int:
        optimizer.zero_grad()
        for micro_batch in tokens.split(args.micro_batch_rows):
            model(input_ids=micro_batch, labels=micro_batch).loss.backward()
        optimizer.step()
        return tokens.numel()

    return speed(step, args.repeats)


def speed(work: Callable[[], int], repeats: int) -> float:
    """Tokens a second: the median of `repeats` runs, after one to warm up."""
    work()
    speeds = []
    for _ in range(repeats):
        start = time.perf_counter()
        tokens = work()
        speeds.append(tokens / (time.perf_counter() - start))
    return statistics.median(speeds)


if __name__ == "__main__":
    main()
