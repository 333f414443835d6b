"""Arguments of `python -m store derive`."""

from store.cli.arguments import Commands, add_ignore_space, add_store, names
from store.sources.states import DERIVED

__all__ = ["add_derive"]

EXAMPLES = """\
The columns are made from hidden_states, layer by layer, in its dtype:
  hs_last     the state of the last token
  hs_prompt   the state of the last token of the prompt; needs prompt_len
  hs_mean     the mean over the answer's tokens, computed in float32; needs prompt_len

They are added to the store in one commit, and nothing else is rewritten. A command that was stopped
has added nothing: run it again. A column that is there already stays as it is.

examples:
  python -m store derive traces.zarr hs_last
  python -m store derive traces.zarr hs_last,hs_prompt,hs_mean
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
        help=f"columns to add, separated by commas: {', '.join(DERIVED)}",
    )
    add_ignore_space(parser)
