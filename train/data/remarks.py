"""What the user should know of the data before a long training."""

import numpy as np

from store.read.joined.joined_store import prefixes_of
from store.reports import count, first_ids
from store.traces.origin import origins_of
from store.traces.question_split import SPLITS
from train.data.batches import TrainingData, has_numbers
from train.data.splits import Splits, name_counts
from train.data.token_labels import find_unusable, has_labelled_tokens

__all__ = ["find_remarks"]

MIN_OF_A_CLASS = 20


def find_remarks(data: TrainingData) -> list[str]:
    """One line on each thing."""
    splits = data.splits
    used = np.concatenate([splits.rows(split) for split in SPLITS])
    remarks = [
        *find_small_splits(splits),
        *find_split_remarks(splits),
        *splits.asked.remarks(used),
    ]
    n_origins = len(origins_of(data.store.provenance))
    if n_origins > 1:
        remarks.append(
            f"warning: the store holds traces of {n_origins} different models, layers or prompts "
            "(merged with --mixed): they may not be comparable"
        )
    unusable = find_unusable(data)
    if unusable is not None and has_labelled_tokens(data):
        remarks.append(f"tokens are not judged: {unusable}")
    prefixes = [f"{prefix}..." for prefix in prefixes_of(data.store)]
    if prefixes:
        remarks.append(
            "the stores have trace ids in common: all begin with their names, "
            f"{', '.join(prefixes)}"
        )
    has_layers = any(data.store.layers(name) for name in data.store.schema.columns)
    if has_layers and not has_numbers(data.store):
        remarks.append(
            "the store does not record which layers of the model it keeps: they are counted from 1"
        )
    return remarks


def find_small_splits(splits: Splits) -> list[str]:
    """One remark on all splits that have few traces of a class; none if there is no such split."""
    labels = {split: splits.labels_of(split) for split in SPLITS}
    small = [
        f"{split} has {name_counts(found)}"
        for split, found in labels.items()
        if np.bincount(found, minlength=2).min() < MIN_OF_A_CLASS
    ]
    if not small:
        return []
    return [
        f"warning: fewer than {MIN_OF_A_CLASS} traces of a class in a split: {', '.join(small)}; "
        "an AUROC of so few says little, whatever its interval"
    ]


def find_split_remarks(splits: Splits) -> list[str]:
    """Which questions are one, what a split of the user leaves out and does not keep apart."""
    remarks = []
    if splits.asked.n_joined:
        remarks.append(
            f"{count(splits.asked.n_joined, 'question id has', 'question ids have')} the text of "
            "an earlier one, and count as the same question (--no-join-questions: do not)"
        )
    shared = splits.shared_questions()
    if shared:
        remarks.append(
            f"warning: {count(len(shared), 'question has', 'questions have')} traces in more than "
            f"one split of {splits.by}: detectors are tested on questions that they have seen, "
            f"such as {first_ids(shared)}"
        )
    if splits.n_outside:
        remarks.append(
            f"{count(splits.n_outside, 'labelled trace is', 'labelled traces are')} in no split of "
            f"{splits.by}{' and --where' if splits.is_filtered else ''}, and left out"
        )
    if splits.n_seen:
        traces = count(splits.n_seen, "labelled trace is", "labelled traces are")
        remarks.append(f"{traces} left out of test, because training has their questions")
    if splits.n_unmatched:
        ids = count(splits.n_unmatched, "id is", "ids are")
        remarks.append(f"warning: {ids} of no trace: {splits.by} may be of another store")
    return remarks
