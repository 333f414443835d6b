"""The report of an extraction: what the store holds, what was left out, how traces are labelled."""

from pathlib import Path

from store.read.store import TraceStore
from store.reports import LeftOut, count
from store.sources.huggingface.generation import end_ids
from store.sources.huggingface.label_report import label_report
from store.sources.huggingface.source import HuggingFaceSource

__all__ = ["extraction_report"]


def extraction_report(
    path: Path,
    store: TraceStore,
    source: HuggingFaceSource,
    skipped: LeftOut,
    writing_s: float = 0.0,
) -> str:
    """Describe the outcome of an extraction, with what looks wrong about the labels.

    `skipped` are the questions that were not asked, `writing_s` seconds spent on writing.
    """
    n_traces = count(len(store), "trace")
    n_questions = len({question["question_id"] for question in source.questions})
    lines = [f"{path}: {n_traces} of {count(n_questions, 'question')}"]
    longest = None if source.is_given else source.max_new_tokens
    lines += label_report(store, source.grader.rules, longest)
    if source.n_examples:
        asked = count(source.n_examples, "question is", "questions are")
        lines.append(f"  {asked} among the examples (--few-shot), left out of their own prompts")
    lines += _bos_warning(source)
    lines += _time_lines(source.seconds, writing_s)
    if skipped.n:
        lines += [f"  {count(skipped.n, 'question')} left out", *skipped.lines()]
    if source.left_out.n:
        lines += [f"  {count(source.left_out.n, 'trace')} left out", *source.left_out.lines()]
        lines.append(f"  to have all: {source.advice}, into a new store")
    return "\n".join(lines)


def _bos_warning(source: HuggingFaceSource) -> list[str]:
    """A warning where prompts lack the token that texts of the model begin with."""
    token = source.model.config.get_text_config().bos_token_id
    fitting = source.first_tokens | end_ids(source.model)  # one that ends texts parts documents
    if token is None or token in fitting or not source.first_tokens:
        return []
    return [
        f"warning: texts of the model begin with {source.tokenizer.convert_ids_to_tokens(token)!r} "
        "(bos_token_id of its configuration), which the tokenizer does not add: put it into "
        "--prompt-template, if the model was trained with it"
    ]


def _time_lines(seconds: dict[str, float], writing_s: float) -> list[str]:
    """What took the time of this run; nothing if it did nothing."""
    if not any(seconds.values()):
        return []
    model = ", ".join(f"{name} {n_seconds:,.1f} s" for name, n_seconds in seconds.items())
    return [f"  time: {model}; writing {writing_s:,.1f} s, at the same time"]
