"""What does it cost to have a model's answers scored while it speaks?

`generate` inside `guard.watch` over `generate` alone, of a random Llama on the CPU: a probe of one
layer, the same with scores of each token as it comes, and a method of attention, whose maps take
one more pass over the whole sequences. The methods are fitted on random traces of the same shapes;
what they say means nothing. Contenders take turns; `ratio` is the median of the turns' ratios, of
the processor's seconds, which other programs disturb less than those of the clock (`clock_ratio`).
"""

import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.harness import Epoch, clocks, parser, run, take_turns
from benchmarks.tables import finish, median_ratio
from store import Schema, StoreWriter
from store.sources.example.recipe import build_tokenizer
from store.traces.columns import TRACE_COLUMNS
from train import fit_detectors, load_run

PLAIN = "generate"
WATCHED = {  # contender -> method, whether tokens are scored
    "one layer: saplma": ("saplma", False),
    "one layer: saplma, each token": ("saplma", True),
    "attention: lapeigvals": ("lapeigvals", False),
}
COLUMNS = ("question_id", "label", "prompt_len", "answer_len", "tokens", "hs_last", "attn_diag")
COLUMNS += ("attn_colsum",)
N_TRACES, N_TOKENS, PROMPT = 160, 12, 32


def main(args: Namespace) -> None:
    """Fit, then generate plainly and watched."""
    path = args.dir / "watch.zarr"
    write_traces(path, args)
    methods = sorted({method for method, _ in WATCHED.values()})
    options = {"baselines": False, "seeds": 1, "epochs": 1, "tune": "none", "force_cpu": True}
    fitted = fit_detectors(path, methods, **options)
    fitted.export(args.dir / "guard.safetensors")
    torch.set_num_threads(args.threads)
    found = contenders(args)
    for work in found.values():  # untimed: it loads what it needs
        work(0)
    turns = take_turns({name: partial(timed, work) for name, work in found.items()}, args.epochs)
    clock, processor = (
        {name: [times[i] for times in turns[name]] for name in turns} for i in range(2)
    )
    rows = [
        {
            "contender": name,
            "ms_per_token": round(statistics.median(processor[name]) * 1e3 / args.tokens, 2),
            "ratio": round(median_ratio(processor[name], processor[PLAIN]), 3),
            "clock_ratio": round(median_ratio(clock[name], clock[PLAIN]), 3),
        }
        for name in turns
    ]
    finish("watch", args.results, rows, "ratio", main="ratio")


def timed(work: Epoch, number: int) -> tuple[float, float]:
    return clocks(partial(work, number))


def write_traces(path: Path, args: Namespace) -> None:
    """Random traces of the model's shapes."""
    sizes = {"layers": args.layers, "heads": args.heads, "hidden": args.hidden_size}
    schema = Schema({name: TRACE_COLUMNS[name].stored(sizes) for name in COLUMNS})
    provenance = {"layers": list(range(1, args.layers + 1))}
    with StoreWriter.create(path, schema, provenance) as writer:
        for i, row in enumerate(rows_of(args)):
            writer.append(f"t{i}", row)


def rows_of(args: Namespace) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    of_heads = (N_TOKENS, args.layers, args.heads)
    for i in range(N_TRACES):
        states = rng.standard_normal((args.layers, args.hidden_size)) + i % 2
        yield {
            "question_id": f"q{i}",
            "label": i % 2,
            "prompt_len": 4,
            "answer_len": N_TOKENS - 4,
            "tokens": np.zeros(N_TOKENS, np.int32),
            "hs_last": states.astype(np.float16),
            "attn_diag": rng.random(of_heads).astype(np.float16),
            "attn_colsum": rng.random(of_heads).astype(np.float16),
        }


def contenders(args: Namespace) -> dict[str, Epoch]:
    """A turn of each: so many tokens."""
    model, tokenizer = random_llama(args), build_tokenizer()
    ids = torch.randint(5, 32_000, (args.batch, PROMPT), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": args.tokens, "do_sample": False}

    def generate(_: int) -> None:
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)

    def watched(watch: Any, number: int) -> None:
        with watch:
            generate(number)

    found: dict[str, Callable[[int], None]] = {PLAIN: generate}
    for name, (method, of_tokens) in WATCHED.items():
        guard = load_run(args.dir / "guard.safetensors", method, force_cpu=True)
        watch = guard.watch(model, tokenizer, force=True)
        if of_tokens:
            watch.on_token()
        found[name] = partial(watched, watch)
    return found


def random_llama(args: Namespace) -> LlamaForCausalLM:
    """One whose answers have no end."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=args.hidden_size,
        intermediate_size=args.hidden_size * 11 // 4,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        max_position_embeddings=512,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


OPTIONS = {
    "--layers": (16, "of the random Llama"),
    "--hidden-size": (1024, "of the random Llama"),
    "--heads": (16, "of the random Llama"),
    "--tokens": (64, "of an answer"),
    "--batch": (1, "answers at once"),
    "--threads": (1, "of torch"),
}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=0, epochs=3, options=OPTIONS))
