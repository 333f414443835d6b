"""What a run requires of a store and of its settings, checked before the first file is written."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import DETECTORS, PROBES, REFERENCES, find
from models.metadata import FieldProbe
from store import StoreError, TraceStore
from store.errors import closest
from store.read.joined.joined_store import open_joined, prefixes_of
from store.reports import count, first_ids
from store.traces.columns import BY_HAND, TRACE_COLUMNS
from store.traces.layers import LAYERS_AXIS, recorded_layers
from store.traces.origin import origins_of
from store.traces.question_split import SPLITS
from store.traces.states import DERIVED
from store.transform.samples.names import NEEDS, NLI, STATES
from store.write.build import partial_path, unfinished
from train.config import EACH, Config, flag_of, off_flag, own_options
from train.data.batches import TrainingData
from train.data.metadata import NO_METADATA, check_fields, metadata_columns
from train.data.questions import read_questions
from train.data.splits import (
    Splits,
    all_as_test,
    check_batch,
    filtered_rows,
    is_missing,
    label_column,
    read_second_labels,
    read_splits,
    read_values,
)
from train.data.token_labels import ROLE, find_unusable, has_labelled_tokens
from train.errors import ConfigError, DataError, OneClassError
from train.outside.methods import ALL, NOTHING

__all__ = [
    "Work",
    "also_needed",
    "bytes_of_answers",
    "check_layers",
    "check_reader",
    "columns_of",
    "find_remarks",
    "has_numbers",
    "missing_columns",
    "names_to_train",
    "open_data",
    "open_store",
    "open_stores",
    "reader_of",
    "roles_of",
    "settings_for",
]

# settings of labels of traces, which a method that learns from those of tokens cannot have
WITHOUT_TOKENS = ("mixup", "on_top_of")
PAIRS: dict[str, tuple[str, Callable[[NDArray[np.int64]], NDArray[np.int64]]]] = {
    # column -> number of pairs of a trace of T tokens
    "attn_mean": ("T(T+1)/2", lambda n_tokens: n_tokens * (n_tokens + 1) // 2),
    "attentions": ("T * T", lambda n_tokens: n_tokens**2),
}
KEPT_FROM = 0.05  # attention that makes an edge of attn_edges
MAX_MAPS_BYTES = 8 << 30  # of the full attention maps of a batch
MIN_OF_A_CLASS = 20
MAX_LEFT_OUT = 50  # values, each of which is a training
BOTH = ("extract", "import")
MAKE_AGAIN = "make the traces again with that column"
EDGES = ("attn_edges", "attn_edge_ends")  # of no use without each other
LABEL = "python -m store label STORE --scores CSV adds it"
SPANS = (
    "python -m store extract STORE --model MODEL --questions FILE writes it where FILE has answers "
    "with the key spans"
)


@dataclass(frozen=True)
class Work:
    """What a run trains, and on what."""

    config: Config  # of the whole run
    names: list[str]  # detectors and probes
    splits: list[TrainingData]  # of each split, with the settings of a run of that split alone
    remarks: list[str] = field(default_factory=list)  # on values that are not held out

    @property
    def detectors(self) -> list[str]:
        return [name for name in self.names if name in DETECTORS]

    @property
    def probes(self) -> list[str]:
        return [name for name in self.names if name not in DETECTORS]


def open_data(config: Config, paths: Sequence[Path]) -> Work:
    """Open the store, or several as one, and split it, once for each seed of a split.

    Raises StoreError, ConfigError or DataError if the store or the settings do not allow the run;
    nothing has been written then.
    """
    store = open_stores(paths, config)
    unsplit = TrainingData(store, all_as_test(store), config)
    names = names_to_train(unsplit)
    for name in names:
        check_to_train(name, unsplit)
    if config.on_top_of is not None:
        if DETECTORS.keys().isdisjoint(names):
            choices = ", ".join(DETECTORS)
            raise ConfigError(
                f"--on-top-of: expected a detector of {choices} among --models, found none"
            )
        check_reader(config.on_top_of, unsplit, "or leave out --on-top-of")
    check_replaced(names, unsplit)
    check_fields(store, config)
    needed = ("question_id", label_column(config))
    check_columns(unsplit, "the split", needed, "or add it to the store")
    parts, remarks = read_parts(store, config, names)
    data = parts[0]
    for part in parts if config.weights is not None else ():
        try:
            part.loader("train", [label_column(config)], shuffle=True)
        except ValueError as error:  # they do not fit the stores, or their training rows
            raise ConfigError(f"--{error}") from error
    if config.strata is not None:
        read_values(store, config.strata, "--strata", data.splits.test)
    read_second_labels(store, config.second_label, data.splits.test)
    return Work(config, names_that_learn(names, data), parts, remarks)


def read_parts(
    store: TraceStore, config: Config, names: Iterable[str]
) -> tuple[list[TrainingData], list[str]]:
    """The data of each split, and remarks on values without one."""
    asked, kept = read_questions(store, config), filtered_rows(store, config.where)
    if config.hold_out == EACH:  # the run on all values learns from the same traces as the others
        kept = kept[~is_missing(read_values(store, str(config.split), "--split", kept))]
    parts: list[TrainingData] = []
    remarks: list[str] = []
    for one in settings_of_splits(store, config, kept):
        try:
            splits = read_splits(store, one, asked, kept)
        except OneClassError as error:
            if config.hold_out != EACH or one.hold_out is None:
                raise
            value = f"{config.split} {one.hold_out!r:.80}"
            remarks.append(f"there is no run without {value}: {error.found}")
            continue
        if not DETECTORS.keys().isdisjoint(names):  # probes learn without batches
            check_batch(splits, store, config.batch_size)
        parts.append(TrainingData(store, splits, one))
    if config.hold_out == EACH and len(parts) == 1:
        raise DataError(
            f"{store.location}: --hold-out {EACH}: expected a value of column {config.split!r} "
            f"with traces of both classes, found none ({remarks[0]}); choose another column as "
            "--split"
        )
    return parts, remarks


def settings_of_splits(store: TraceStore, config: Config, kept: NDArray) -> list[Config]:
    """The settings of each split: one a seed; or one of all values, and one without each."""
    if config.hold_out != EACH:
        seeds = range(config.seed, config.seed + config.splits)
        return [replace(config, seed=seed, splits=1) for seed in seeds]
    values = read_values(store, str(config.split), "--split", kept)
    distinct = sorted({str(value) for value in values} - {""})
    if not 2 <= len(distinct) <= MAX_LEFT_OUT:
        raise DataError(
            f"{store.location}: --hold-out {EACH}: expected 2 to {MAX_LEFT_OUT} values of column "
            f"{config.split!r}, found {len(distinct)}; choose another column as --split"
        )
    every = replace(config, split=None, hold_out=None)
    return [every, *(replace(config, hold_out=value) for value in distinct)]


def check_to_train(name: str, data: TrainingData) -> None:
    """Raise an error unless the store has what a method is trained on."""
    way_out = f"or leave it out with {off_flag(name)}"
    check_reader(name, data, way_out)
    check_columns(data, name, trained_on(name), way_out)
    if "attn_mean" in columns_of(name, data):
        check_threshold(data)


def open_stores(paths: Sequence[Path], config: Config) -> TraceStore:
    """Open a store, or several as one; raises DataError for one that is given twice, also as a copy
    with the same uuid."""
    stores = [open_store(path, config) for path in paths]
    for first, second in combinations(stores, 2):
        if first.uuid == second.uuid:
            raise DataError(
                f"--store: expected each store once, found {first.location} and "
                f"{second.location}, which have one uuid; --weights gives a store a larger share"
            )
    return open_joined(stores)


def open_store(path: Path, config: Config) -> TraceStore:
    """Open a store; raises DataError where only an unfinished build of it is there, unless its
    commits are followed."""
    build = unfinished(path)
    if build is not None and config.follow:
        path = partial_path(path)
    elif build is not None:
        raise DataError(build)
    try:
        return TraceStore.open(path, config.cache_size)
    except ValueError as error:
        raise ConfigError(f"--cache-size: {error}") from error


def names_that_learn(names: Sequence[str], data: TrainingData) -> list[str]:
    """The names without those that `all` took in and that cannot learn from labels of tokens here.

    Raises an error if one that was named cannot.
    """
    flags = [flag_of(setting) for setting in WITHOUT_TOKENS if getattr(data.config, setting)]
    of_tokens = any(find(name).targets for name in names)
    problem = find_unusable(data) if of_tokens else None
    found = []
    for name in names:
        if not find(name).targets or not (flags or problem):
            found.append(name)
        elif name in data.config.detectors:
            way_out = f"or leave it out with {off_flag(name)}"
            for flag in flags:
                raise ConfigError(
                    f"{flag}: {name} learns from labels of tokens, not of traces, and cannot have "
                    f"it; leave out {flag}, {way_out}"
                )
            raise DataError(f"{data.store.location}: {name}: {problem}, {way_out}")
    return check_any(found, data)


def find_remarks(data: TrainingData) -> list[str]:
    """What the user should know of the data before a long training."""
    splits = data.splits
    used = np.concatenate([splits.rows(split) for split in SPLITS])
    remarks = [
        *find_small_splits(data),
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


def find_small_splits(data: TrainingData) -> list[str]:
    """One remark on all splits that have few traces of a class; none if there is no such split."""
    small = []
    for split in SPLITS:
        labels = data.splits.labels_of(split)
        n_wrong = int(labels.sum())
        n_right = len(labels) - n_wrong
        if min(n_wrong, n_right) < MIN_OF_A_CLASS:
            small.append(f"{split} has {n_wrong} hallucinations and {n_right} right answers")
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
    wordings = splits.shared_wordings()
    if len(wordings) > 1:  # one is an instruction, such as to summarise
        remarks.append(
            f"warning: {len(wordings):,} questions are asked over other contexts in more than one "
            "split: where the context does not change the answer, detectors are tested on what "
            "they have seen; one question_id joins them"
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


def has_numbers(store: TraceStore) -> bool:
    """Whether the store records a number for each layer that its columns have."""
    recorded = recorded_layers(store.provenance)
    if recorded is None:
        return False
    n_layers = {len(store.layers(name)) for name in store.schema.columns}
    return n_layers <= {0, len(recorded)}


def names_to_train(data: TrainingData) -> list[str]:
    """Names of the detectors and probes to train; of `all` those whose columns the store has.

    Methods that are named beside `all` are among them whether the store has their columns or not.
    """
    named = list(dict.fromkeys(data.config.detectors))
    names = [name for name in named if name != ALL]
    if ALL in named:
        names += [
            name
            for name in [*DETECTORS, *PROBES]
            if name not in {*names, *data.config.left_out}
            and not missing_columns(data, [*columns_of(name, data), *trained_on(name)])
        ]
    return check_any(names, data)


def check_any(names: list[str], data: TrainingData) -> list[str]:
    if not names:
        raise ConfigError(f"--models all: no detector fits the columns of {data.store.location}")
    return names


def check_replaced(names: Iterable[str], data: TrainingData) -> None:
    roles: set[str] = set()
    for name in [*names, *REFERENCES]:
        roles.update(roles_of(find(name)), columns_of(name, data))
    choices = sorted(roles - {"question_id"})
    for role in data.config.replaced:
        if role not in choices:
            raise ConfigError(
                "--columns: expected names that these detectors and baselines read, "
                f"{', '.join(choices)}, found {role!r:.80}{closest(role, choices)}"
            )


def trained_on(name: str) -> tuple[str, ...]:
    """The columns besides those that a method scores from which its training has to have."""
    method = find(name)
    return (*method.targets, *getattr(method, "learns_from", ()))


def roles_of(reader: Any) -> tuple[str, ...]:
    """The columns that a method reads: labels too, those that may be missing, those instead."""
    other = getattr(reader, "otherwise", None)
    optional = getattr(reader, "optional", ())
    targets = getattr(reader, "targets", ())
    return (*reader.columns, *optional, *targets, *(other.columns if other else ()))


def reader_of(name: str, data: TrainingData) -> Any:
    """The detector or probe of a name, as it reads this store.

    A probe that can read other columns instead does so where the store has those only; the control
    of fields reads those that the store has.
    """
    reader: Any = find(name)
    if isinstance(reader, FieldProbe):
        chosen = metadata_columns(data.store, data.config)
        named = frozenset(name for name, is_named in chosen.items() if is_named)
        return replace(reader, columns=tuple(chosen), named=named)
    other = getattr(reader, "otherwise", None)
    if other is None or not missing_columns(data, reader.columns):
        return reader
    return reader if missing_columns(data, other.columns) else other


def columns_of(name: str, data: TrainingData) -> tuple[str, ...]:
    """Columns that a detector, probe or baseline reads of this store with these settings."""
    if name in DETECTORS:
        return DETECTORS[name].columns_for(settings_for(name, data.config))
    columns: tuple[str, ...] = reader_of(name, data).columns
    return columns


def bytes_of_answers(name: str, data: TrainingData) -> float:
    """Mean bytes, decoded, of what the scores of samples that a method reads were made from.

    They are of a trace of test: of all answers to its question, offsets not counted.
    """
    scores = [role for role in read_to_score(name, data) if role in NEEDS]
    made_from = [one for role in scores for one in NEEDS[role] if not missing_columns(data, [one])]
    return answers_per_question(data) * sum(column_bytes(role, data) for role in made_from)


def also_needed(name: str, data: TrainingData) -> str | None:
    """What else the columns that a method reads were made from; None where nothing is."""
    scores = [role for role in read_to_score(name, data) if role in NEEDS]
    if not scores:
        return None
    nli = ", a classifier (NLI)" if any(role in NLI for role in scores) else ""
    return f"{answers_per_question(data):.3g} answers a question{nli}"


def read_to_score(name: str, data: TrainingData) -> list[str]:
    """The columns of this store that a method reads to score, optional ones among them."""
    optional = getattr(reader_of(name, data), "optional", ())
    used = [role for role in optional if role not in trained_on(name)]
    present = [role for role in used if not missing_columns(data, [role])]
    return [*columns_of(name, data), *present]


def column_bytes(role: str, data: TrainingData) -> float:
    """Mean bytes of a column that scores of samples are made from, in a trace of test; of states
    those of one layer."""
    name = data.column(role)
    column = data.store.schema.columns[name]
    shape = data.item_shape(role)
    if role == STATES:
        shape = (1, *shape[1:])
    n_items = float(data.store.lengths(name)[data.splits.test].mean())
    return n_items * column.storage_dtype.itemsize * math.prod(shape)


def answers_per_question(data: TrainingData) -> float:
    """Mean number of answers in the store to the question of a trace of test."""
    return float(np.bincount(data.splits.questions)[data.splits.questions[data.splits.test]].mean())


def settings_for(name: str, config: Config) -> dict[str, object]:
    """All settings by name, and the options that a detector has for itself."""
    given = config.outside.get(name, NOTHING).options
    return asdict(config) | own_options(name, DETECTORS[name].options, given)


def check_reader(name: str, data: TrainingData, way_out: str) -> None:
    """Raise DataError unless the store holds what a detector, probe or baseline reads."""
    reader = reader_of(name, data)
    if not reader.columns:
        raise DataError(f"{data.store.location}: {name}: {NO_METADATA}, {way_out}")
    check_columns(data, name, reader.columns, way_out)
    roles = columns_of(name, data)
    setting = "--readout" if "readout" in getattr(reader, "options", ()) else "setting of its own"
    check_columns(data, name, roles, f"or give another {setting}, {way_out}")
    check_layers(data, name, roles)
    for role in PAIRS.keys() & roles:
        check_pairs(data, role)
    if "attn_edges" in roles:
        check_kept(data, "charm_threshold", KEPT_FROM, "attn_edges has no weaker edges")
    if "attentions" in roles:
        check_maps(name, data)


def check_columns(data: TrainingData, reader: str, roles: Iterable[str], way_out: str) -> None:
    """Raise DataError unless the store has the columns of these roles, of the right kinds."""
    for problem in missing_columns(data, roles).values():
        raise DataError(f"{data.store.location}: {reader}: {problem}, {way_out}")


def missing_columns(data: TrainingData, roles: Iterable[str]) -> dict[str, str]:
    """Each column of these roles that is not there, or of another kind -> what to do about it."""
    columns = data.store.schema.columns
    missing = {}
    for role, name in data.names(roles).items():
        if name not in columns:
            missing[name] = (
                f"expected column {name!r}, found only {', '.join(columns)}; "
                f"{_way_to_add(role, data.store)}"
            )
            continue
        column = columns[name]
        known = TRACE_COLUMNS.get(role)
        counts = known is not None and "int" in known.dtype
        found = kind_of(column.dtype, column.axis, len(column.item_shape), counts)
        expected = found
        if known is not None:
            expected = kind_of(known.dtype, known.axis, len(known.item_axes), counts)
        if found != expected:
            missing[name] = (
                f"expected column {name!r} to be {expected}, found {found}; {ways_to_make(role)}"
            )
    return missing


def _way_to_add(role: str, store: TraceStore) -> str:
    """What to do about a column that is not there; a command where one derives it."""
    needed = {"hidden_states"} if role == "hs_last" else {"hidden_states", "prompt_len"}
    if role in DERIVED and needed <= store.schema.columns.keys():
        return f"python -m store derive {store.location} {role} adds it"
    if role in NEEDS:
        nli = " --nli MODEL" if role in NLI else ""
        return (
            f"python -m store derive {store.location} {role}{nli} adds it, if questions have "
            "several traces (extract --num-samples)"
        )
    if role in (ROLE, "label", "score"):
        return SPANS if role == ROLE else LABEL
    return ways_to_make(role)


def ways_to_make(role: str) -> str:
    """The commands that make a column with the traces, by the registry of columns."""
    known = TRACE_COLUMNS.get(role)
    made_by = [one for one in known.made_by if one.startswith(BOTH)] if known else BOTH
    names = ",".join(["default", *(EDGES if role in EDGES else (role,))])
    ways = [f"{one} {names}" if one == BY_HAND else one for one in made_by]
    return f"{MAKE_AGAIN} (python -m store {' or '.join(ways)})"


def kind_of(dtype: str, axis: str | None, n_item_axes: int, counts: bool) -> str:
    """What a column is, in words; of one of `counts` also its numbers."""
    if dtype == "utf8":
        return "text"
    kind = f"{'ragged' if axis else 'fixed'} with {n_item_axes} item axes"
    if not counts:
        return kind
    return f"{kind} of {'integers' if 'int' in dtype or dtype == 'bool' else dtype}"


def check_layers(data: TrainingData, reader: str, roles: Iterable[str]) -> None:
    """Raise DataError if --layers names layers that a column does not have.

    Columns of other things, which the names of their axes tell, are read whole.
    """
    if data.config.layers is None:
        return
    where = f"{data.store.location}: {reader}: --layers"
    for role, name in data.names(roles).items():
        column = data.store.schema.columns[name]
        axes = column.axis_names
        known = TRACE_COLUMNS.get(role)
        is_of_layers = not axes or (known is not None and LAYERS_AXIS in known.axes)
        if column.item_shape and LAYERS_AXIS not in axes and is_of_layers:
            found = ", ".join(map(repr, axes)) or "axes without names"
            raise DataError(
                f"{where}: expected an axis 'layers' in column {name!r}, found {found}; "
                "leave out --layers"
            )
        try:
            data.layer_numbers(role)
        except StoreError as error:
            raise DataError(f"{where}: {error}") from error


def check_pairs(data: TrainingData, role: str) -> None:
    """Raise DataError unless every trace of T tokens has T(T+1)/2 pairs, or T * T of full maps.

    Only offsets are read.
    """
    store = data.store
    formula, count_pairs = PAIRS[role]
    tokens, pairs = data.names(("hidden_states", role)).values()
    n_tokens = store.lengths(tokens)
    n_pairs = store.lengths(pairs)
    expected = count_pairs(n_tokens)
    wrong = np.flatnonzero(n_pairs != expected)
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{store.location}: column {pairs!r}, trace {store.ids[row]!r}: expected {formula} = "
            f"{expected[row]} pairs for its {n_tokens[row]} tokens, found {n_pairs[row]}; "
            f"make the {len(wrong)} traces like it again"
        )


def check_threshold(data: TrainingData) -> None:
    kept_from = data.store.provenance.get("attn_threshold") or 0.0
    check_kept(data, "attn_threshold", kept_from, "weaker edges were dropped before the import")


def check_kept(data: TrainingData, setting: str, kept_from: float, why: str) -> None:
    """Raise DataError for a threshold below that of the edges that a store keeps."""
    threshold, flag = getattr(data.config, setting), flag_of(setting)
    if threshold < kept_from:
        raise DataError(
            f"{data.store.location}: {flag}: expected {kept_from!r} or more, because {why}, found "
            f"{threshold!r}; give {flag} {kept_from!r}"
        )


def check_maps(reader: str, data: TrainingData) -> None:
    """Raise DataError if the full maps of a batch could be too large for the memory.

    They grow with the square of the length: 2 GiB in float16 for one trace of 1,024 tokens and
    1,024 heads in all layers.
    """
    name = data.column("attentions")
    column = data.store.schema.columns[name]
    pair_bytes = column.storage_dtype.itemsize * math.prod(data.item_shape("attentions"))
    longest = np.sort(data.store.lengths(name))[::-1][: data.config.batch_size]
    n_bytes = (longest * pair_bytes).cumsum()  # of so many of the longest traces
    if not len(n_bytes) or n_bytes[-1] <= MAX_MAPS_BYTES:
        return
    n_fitting = int((n_bytes <= MAX_MAPS_BYTES).sum())
    way_out = f"lower --batch-size, to {n_fitting} at most, or read fewer --layers"
    if not n_fitting:
        way_out = "read fewer --layers, or leave out long traces (python -m store subset)"
    raise DataError(
        f"{data.store.location}: {reader}: expected at most {MAX_MAPS_BYTES:,} bytes of column "
        f"{name!r} in a batch, found {n_bytes[-1]:,} in the {len(longest)} longest traces; "
        f"{way_out}"
    )
