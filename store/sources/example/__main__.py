"""Make the example's weights again: `python -m store.sources.example --output-dir DIR`."""

import argparse
import sys
import time
from collections.abc import Callable
from statistics import mean

from store.cli.arguments import path, positive
from store.sources.example.recipe import Recipe, save_model, train_model

SHOW_EVERY = 50  # steps


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m store.sources.example",
        description="Train the example's language model from scratch and write its model "
        "directory. The defaults make the weights that ship; the same settings on the same "
        "processor give the same bits.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--output-dir",
        type=path,
        required=True,
        help="directory to write; created if it is missing",
    )
    parser.add_argument("--n-steps", type=positive, default=Recipe.n_steps, help="optimizer steps")
    parser.add_argument(
        "--seed", type=int, default=Recipe.seed, help="of weights and lines of the corpus"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    # first, so that a bad path costs no training
    args.output_dir.mkdir(parents=True, exist_ok=True)
    recipe = Recipe(n_steps=args.n_steps, seed=args.seed)
    model, tokenizer = train_model(recipe, _progress(recipe.n_steps))
    save_model(model, tokenizer, args.output_dir)
    print(f"wrote {args.output_dir}")
    return 0


def _progress(n_steps: int) -> Callable[[int, float], None]:
    """Make a reporter that rewrites one line of stderr: step, mean loss, time left."""
    began = time.monotonic()
    losses: list[float] = []  # since the last line

    def report(step: int, loss: float) -> None:
        losses.append(loss)
        if step % SHOW_EVERY and step != n_steps:
            return
        left_s = (time.monotonic() - began) / step * (n_steps - step)
        loss_text = f"loss {mean(losses):.3f} nats/token"
        line = f"\rstep {step}/{n_steps}  {loss_text}  {left_s:.0f} s left "
        print(line, end="\n" if step == n_steps else "", file=sys.stderr, flush=True)
        losses.clear()

    return report


if __name__ == "__main__":
    sys.exit(main())
