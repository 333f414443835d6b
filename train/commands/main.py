"""The command `python -m train`: settings in, results and exit status out.

Exit status 0: done. 1: done in part (`evaluate`). 2: a mistake that the user can mend, said in one
line on stderr. 130: interrupted.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

from store.cli.arguments import as_called, program
from store.errors import is_no_damage
from store.reports import discard_output, say
from train.config import Arguments, parse_arguments
from train.errors import TrainError, store_errors

__all__ = ["main", "train"]

# modules whose main takes the arguments after their name, and returns an exit status or None
COMMANDS = ("compare", "evaluate", "predict", "serve")
EXAMPLE_STORE = Path("data/example.zarr")

# torch takes seconds to import: nothing above does it, nor anything below before the settings are
# known to be good.


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    command = argv[0] if argv and argv[0] in COMMANDS else None
    name = program("train") if command is None else f"{program('train')} {command}"
    status = 0
    try:
        if command is None:
            train(parse_arguments(argv))
        else:
            status = import_module(f"train.commands.{command}").main(argv[1:]) or 0
        sys.stdout.flush()
    except TrainError as error:
        message = str(error)
    except OSError as error:
        discard_output()
        if isinstance(error, BrokenPipeError):  # the reader of our output has left, e.g. `| head`
            return 0
        message = str(error)
        if error.strerror is not None:
            message = f"{error.filename or 'output'}: {error.strerror}"
    except (MemoryError, RuntimeError) as error:
        if not is_no_damage(error):
            raise
        message = f"expected more memory, found no more: {error!r:.200}; free some"
    except ModuleNotFoundError as error:
        from store.extras import missing_package

        missing = missing_package(error, "train")
        if missing is None:
            raise
        message = missing
    except KeyboardInterrupt:
        advice = "; --resume continues" if command is None else ""
        _say(f"interrupted; every file written so far is whole{advice}", name)
        return 130
    else:
        return status
    _say(message, name)
    return 2


def train(arguments: Arguments) -> None:
    """Check, train, write the results and print them; raise TrainError for a mistake."""
    from train.fit.device import launched
    from train.library.fit import fit
    from train.report.console import OutputConsole, print_results

    config = arguments.config
    stores = config.stores or [EXAMPLE_STORE]
    output_dir = Path("runs") / "+".join(store.resolve().stem for store in stores)
    if config.output_dir is not None:
        output_dir = Path(config.output_dir)
    with launched(config) as fabric, store_errors():
        if config.store is None and fabric.is_global_zero:
            build_example(EXAMPLE_STORE)
        fabric.barrier()
        run = fit(arguments, fabric, stores, output_dir, progress=True)
    if run is None:  # the first process writes for all
        return
    print_results(run.results, OutputConsole(), has_remarks=is_one_screen())
    mirror = run.experiment.data.store.mirror
    if mirror is not None:
        say(mirror.summary())
    say(f"report.html, report.md, results.json, scores.csv and checkpoints: {output_dir}")


def is_one_screen() -> bool:
    """Whether errors, with the remarks of the training among them, go where the results go."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except OSError:  # one of them is no file, as in a notebook, or closed
        return False


def build_example(path: Path) -> None:
    """Build the embedded example store unless it is there; raises TrainError if it cannot be."""
    if path.exists():
        return
    from rich.console import Console
    from rich.progress import Progress

    from store.extras import needs_extra
    from train.fit.device import cpu_arithmetic

    with (
        store_errors(),
        needs_extra(
            "extract", "the example store, for want of a --store, is made by a language model: "
        ),
    ):
        from store.sources.example import ExampleSource
        from store.write.build import build_store

        source = ExampleSource()
    _say(f"building the example store {path}, once")
    with Progress(console=Console(stderr=True)) as progress, cpu_arithmetic(1):
        task = progress.add_task("traces", total=len(source))
        build_store(path, source, lambda done: progress.update(task, completed=done))


def _say(message: object, name: str | None = None) -> None:
    rank = os.environ.get("RANK", "0")  # torchrun's number of this process
    process = "" if rank == "0" else f"process {rank}: "
    say(f"{name or program('train')}: {process}{as_called(str(message))}", file=sys.stderr)
