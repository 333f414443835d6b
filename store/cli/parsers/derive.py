"""Arguments of `python -m store derive`."""

from store.cli.arguments import Commands, add_ignore_space, add_store, expand, names, positive
from store.traces.states import DERIVED
from store.transform.samples.names import NEEDS

__all__ = ["add_derive"]

EXAMPLES = """\
These columns are made from hidden_states, layer by layer, in its dtype:
  hs_last     the state of the last token
  hs_prompt   the state of the last token of the prompt; needs prompt_len
  hs_mean     the mean over the answer's tokens, computed in float32; needs prompt_len

These compare the traces of one question (extract --num-samples N); a trace whose question has no
other one gets NaN. The value is of the question, on each of its traces, but for selfcheck_nli:
  eigenscore                 spread of the states hs_last at a layer
  lexical_similarity         mean ROUGE-L of the answers, pair by pair
  semantic_entropy           entropy of the answers' meanings, by their probabilities; needs logprob
  semantic_entropy_discrete  entropy of the answers' meanings, by their number
  selfcheck_nli              how much the other answers contradict the trace's sentences
The last three ask a classifier of natural language inference, --nli; it comes from this machine.

Each group of columns is added to the store in one commit, and nothing else is rewritten. A command
that was stopped has not added the group that it was at: run it again. A column that is there
already stays as it is.

examples:
  python -m store derive traces.zarr hs_last
  python -m store derive traces.zarr hs_last,hs_prompt,hs_mean
  python -m store derive samples.zarr eigenscore lexical_similarity
  python -m store derive samples.zarr eigenscore --layer 12 --replace
  python -m store derive samples.zarr semantic_entropy selfcheck_nli --nli ./deberta-mnli
"""


def add_derive(commands: Commands) -> None:
    parser = commands.add_parser(
        "derive",
        help="add columns that follow from others",
        description="Add columns to a store that follow from others that it has.",
        epilog=EXAMPLES,
    )
    add_store(parser)
    parser.add_argument(
        "columns",
        metavar="COLUMNS",
        type=names,
        nargs="+",
        help=f"columns to add, separated by commas or blanks: {', '.join([*DERIVED, *NEEDS])}",
    )
    parser.add_argument(
        "--layer",
        metavar="N",
        type=int,
        help="layer of eigenscore, as the model numbers it; -1: the last one (default: the middle "
        "of those in hs_last)",
    )
    parser.add_argument(
        "--nli",
        metavar="NAME_OR_PATH",
        type=expand,
        help="sequence classifier with the labels entailment, contradiction and neutral: a "
        "directory, or a model in the cache of Hugging Face; its weights in safetensors",
    )
    parser.add_argument(
        "--batch-size",
        metavar="N",
        type=positive,
        default=32,
        help="pairs of texts that the classifier reads at once (default: %(default)s)",
    )
    parser.add_argument(
        "--device",
        help="torch device of the classifier, e.g. cuda:1 (default: cuda if there is one, else "
        "cpu)",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="make scores again that the store has (default: they stay)",
    )
    add_ignore_space(parser)
