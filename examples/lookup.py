"""Look a trace up by its id, and print its texts and the log-probability of each answer token.

Run it in the checkout, after `make train` has made the example store:

    python examples/lookup.py data/example.zarr              # lists the first ids
    python examples/lookup.py data/example.zarr TRACE_ID
"""

import sys

from store import NotFoundError, TraceStore


def main(path: str, trace_id: str | None = None) -> int:
    """Print a trace, or the first ids; returns the exit status."""
    store = TraceStore.open(path)  # reads one small file, whatever the size of the store
    if trace_id is None:
        print("\n".join(store.ids[:10]))
        return 0
    try:
        trace = store[trace_id]  # nothing is read until a column is asked for
    except NotFoundError as error:  # its message names ids like this one
        print(error, file=sys.stderr)
        return 2
    for name in ("question", "answer", "references", "label"):
        print(f"{name}: {trace[name]}")
    first = trace["prompt_len"]
    answer = slice(first, first + trace["answer_len"])
    for token, logprob in zip(trace["tokens"][answer], trace["logprob"][answer], strict=True):
        print(f"token {token:6d}  log-probability {logprob:8.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
