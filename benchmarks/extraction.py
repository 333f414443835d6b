"""What do the columns of a trace cost beside the forward pass that they come from?

Three questions, on the CPU, with random Llamas and the embedded example:
- memory: what a pass over whole traces adds to the peak of a process of its own, for models of few
  and of many layers. transformers collects states and maps of all layers; ours takes them layer by
  layer. The baseline is the smallest number of layers (`ratio`); hidden states, which
  have to be written anyway, are left out in one row and kept in the other.
- columns and writing: a pass that makes all default columns and writes them to a store, over the
  bare pass (eager, `output_attentions` and `output_hidden_states`, nothing kept), which is the
  floor.
- extract: a whole store of answers, over `generate` and the bare pass for the same batches.

Contenders take turns; where time is measured, `ratio` is the median of the turns' ratios to the
bare one.
"""

import shutil
import statistics
from argparse import Namespace
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from benchmarks.harness import Epoch, alternate_long, in_new_process, parser, run, status_bytes
from benchmarks.tables import finish, median_ratio
from store import Schema, StoreWriter
from store.sources.example import ExampleSource, example_questions
from store.sources.example.recipe import build_tokenizer
from store.sources.huggingface.forward import run_forward
from store.sources.huggingface.generation import Decoding, cut_at_end, end_ids, pad
from store.sources.huggingface.kept import Kept, build_schema, choose_columns
from store.sources.huggingface.prompts import Prompts
from store.sources.huggingface.source import HuggingFaceSource
from store.sources.questions import Question
from store.write.build import build_store

TOP_K = 10
# of the default columns, those that the forward pass gives
FROM_THE_PASS = ("hs_", "hidden_", "attn_", "logprob", "entropy", "topk_", "eos_")
NEW_TOKENS = 32

Traces = list[tuple[list[list[int]], list[int]]]  # batches: token ids, tokens of the prompts


def main(args: Namespace) -> None:
    """Memory, then the two times, each for both models."""
    results = memory_rows(args)
    llama = random_llama(args, args.timed_layers)
    traces = random_traces(args.traces, args.timed_tokens)
    example = ExampleSource(example_questions()[: args.questions])
    name = f"random Llama, {args.timed_layers} layers, {args.timed_tokens} tokens"
    for what, model, batches in (
        (name, llama, [traces]),
        ("embedded example", example.model, answered(example)),
    ):
        timed = alternate_long(passes(model, batches, args.dir), args.epochs)
        results += time_rows(f"columns and writing: {what}", timed)
    for what, source in ((name, llama_source(args, llama)), ("embedded example", example)):
        timed = alternate_long(extractions(source, args.dir), args.epochs)
        results += time_rows(f"extract: {what}", timed)
    named_by = ("what", "contender")
    finish("extraction", args.results, results, "ratio", main="ratio", named_by=named_by)


def memory_rows(args: Namespace) -> list[dict]:
    """Megabytes that a pass adds, the median of processes of their own.

    Peaks of equal processes differ by a tenth: the heap of each has other gaps.
    """
    results = []
    for contender in MEMORY:
        fewest = None
        for n_layers in sorted(args.layers):
            peak_mb = statistics.median(
                in_new_process(peak_of_a_pass, args, n_layers, contender)
                for _ in range(args.processes)
            )
            fewest = fewest or peak_mb
            results.append(
                {
                    "what": f"memory: {args.tokens} tokens, {n_layers} layers",
                    "contender": contender,
                    "peak_MB": round(peak_mb),
                    "ratio": round(peak_mb / max(fewest, 0.1), 3),
                }
            )
    return results


def time_rows(what: str, timed: dict[str, list[float]]) -> list[dict]:
    """A row for each contender; the first one is the bare pass."""
    bare = next(iter(timed.values()))
    return [
        {
            "what": what,
            "contender": name,
            "ms": round(1000 * min(times), 1),
            "median_ms": round(1000 * statistics.median(times), 1),
            "ratio": round(median_ratio(times, bare), 3),
        }
        for name, times in timed.items()
    ]


def random_llama(args: Namespace, n_layers: int) -> LlamaForCausalLM:
    """A model of the example's vocabulary that never ends an answer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(build_tokenizer()),
        hidden_size=args.hidden_size,
        intermediate_size=3 * args.hidden_size,
        num_hidden_layers=n_layers,
        num_attention_heads=args.heads,
        max_position_embeddings=2 * max(args.tokens, args.timed_tokens),
        eos_token_id=None,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).eval()


def random_traces(n_traces: int, n_tokens: int) -> tuple[list[list[int]], list[int]]:
    """A batch of traces of one length, half of it the prompt."""
    ids = torch.randint(len(build_tokenizer()), (n_traces, n_tokens)).tolist()
    return ids, [n_tokens // 2] * n_traces


def answered(source: ExampleSource) -> Traces:
    """The batches of the example's traces."""
    tokens_only = HuggingFaceSource(
        source.model,
        source.prompts,
        source.questions,
        source.decoding,
        Kept(columns=["tokens", "prompt_len"]),
        batch_size=source.batch_size,
    )
    rows = [row for _, row in tokens_only.rows()]
    cut = [rows[i : i + source.batch_size] for i in range(0, len(rows), source.batch_size)]
    return [
        ([row["tokens"].tolist() for row in batch], [row["prompt_len"] for row in batch])
        for batch in cut
    ]


def bare_pass(model: PreTrainedModel, traces: list[list[int]]) -> Any:
    """What transformers does when asked for states and maps; nothing of it is used."""
    ids, mask = pad(traces, "right", 0, model.device)
    with torch.inference_mode():
        return model(
            input_ids=ids,
            attention_mask=mask,
            use_cache=False,
            output_hidden_states=True,
            output_attentions=True,
        )


def default_schema(model: PreTrainedModel) -> Schema:
    """The default columns that the pass gives."""
    config = model.config
    every = build_schema(
        config.num_hidden_layers, config.num_attention_heads, config.hidden_size, TOP_K
    )
    kept = choose_columns(None, every).columns
    return Schema({name: kept[name] for name in kept if name.startswith(FROM_THE_PASS)})


def our_pass(
    model: PreTrainedModel, traces: list[list[int]], prompt_lens: list[int], columns: Any
) -> list[Any]:
    """The columns of a batch."""
    layers = range(1, model.config.num_hidden_layers + 1)
    return run_forward(model, traces, prompt_lens, list(layers), TOP_K, columns)


def passes(model: PreTrainedModel, batches: Traces, directory: Path) -> dict[str, Epoch]:
    """The bare pass, the columns, and the columns in a store."""
    schema = default_schema(model)
    path = directory / "passes.zarr"

    def bare(_: int) -> None:
        for traces, _ in batches:
            bare_pass(model, traces)

    def columns(_: int) -> None:
        for traces, prompt_lens in batches:
            our_pass(model, traces, prompt_lens, schema.columns)

    def written(_: int) -> None:
        shutil.rmtree(path, ignore_errors=True)
        n = 0
        with StoreWriter.create(path, schema) as writer:
            for traces, prompt_lens in batches:
                for row in our_pass(model, traces, prompt_lens, schema.columns):
                    writer.append(f"t{n}", row)
                    n += 1

    return {"bare pass": bare, "ours: columns": columns, "ours: columns and writing": written}


def llama_source(args: Namespace, model: PreTrainedModel) -> HuggingFaceSource:
    """A batch of questions as long as traces are, less the answer."""
    n = max(1, args.timed_tokens - NEW_TOKENS - 1)
    prompts = Prompts(build_tokenizer(), model, "{question}", False, NEW_TOKENS)
    questions: list[Question] = [
        {"question_id": f"q{i}", "question": "in " * n, "answers": []} for i in range(args.traces)
    ]
    encoded = [prompts.encode(question) for question in questions]
    decoding = Decoding(max_new_tokens=NEW_TOKENS)
    return HuggingFaceSource(model, prompts, encoded, decoding, batch_size=args.traces)


def extractions(source: HuggingFaceSource, directory: Path) -> dict[str, Epoch]:
    """`generate` and the bare pass, and a whole store."""
    path = directory / "extracted.zarr"
    prompts = [question.prompt.tolist() for question in source.questions]
    n = source.batch_size
    batches = [prompts[i : i + n] for i in range(0, len(prompts), n)]
    ends = end_ids(source.model)
    settings = {
        "max_new_tokens": source.decoding.max_new_tokens,
        "do_sample": False,
        "pad_token_id": min(ends, default=0),
    }

    def bare(_: int) -> None:
        for batch in batches:
            ids, mask = pad(batch, "left", 0, source.model.device)
            with torch.inference_mode():
                written = source.model.generate(input_ids=ids, attention_mask=mask, **settings)
            answers = written[:, ids.shape[1] :].tolist()
            cut = [cut_at_end(answer, ends, None) for answer in answers]
            bare_pass(source.model, [*map(add, batch, cut)])

    def extracted(_: int) -> None:
        shutil.rmtree(path, ignore_errors=True)
        build_store(path, source)

    return {"bare generate and pass": bare, "ours: extract": extracted}


MEMORY = {
    "transformers' own collection": None,
    "ours: without hidden_states": {"hidden_states"},
    "ours": set(),
}


def peak_of_a_pass(args: Namespace, n_layers: int, contender: str) -> float:
    """Megabytes that a pass adds to a process, once a short one has loaded what it needs."""
    model = random_llama(args, n_layers)
    without = MEMORY[contender]
    if without is None:
        one_pass = lambda traces, _: bare_pass(model, traces)  # noqa: E731
    else:
        columns = set(default_schema(model).columns) - without
        one_pass = partial(our_pass, model, columns=columns)
    one_pass(*random_traces(1, 4))
    traces = random_traces(args.traces, args.tokens)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = status_bytes("VmRSS")
    kept = one_pass(*traces)
    peak = status_bytes("VmHWM")
    assert len(kept)
    return (peak - before) / 1e6


OPTIONS = {
    "--traces": (4, "batch size"),
    "--tokens": (1024, "of a trace where memory is measured"),
    "--layers": ([8, 32], "of the models whose memory is compared"),
    "--processes": (2, "in which memory is measured, one after the other"),
    "--timed-tokens": (512, "of a trace where time is measured"),
    "--timed-layers": (8, "of the model whose time is measured"),
    "--hidden-size": (512, "of the random Llamas"),
    "--heads": (16, "of the random Llamas"),
    "--questions": (5000, "of the embedded example"),
}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=0, epochs=5, options=OPTIONS))
