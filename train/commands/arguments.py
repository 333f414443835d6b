"""Options that the commands which score traces with a finished run have in common."""

import argparse
from dataclasses import replace

from train.config import Config, check_config

__all__ = ["add_scoring_options", "scoring_settings"]


def add_scoring_options(parser: argparse.ArgumentParser) -> None:
    """Add how traces are read and where they are scored."""
    parser.add_argument(
        "--batch-size", type=int, metavar="INT", help="traces at a time (default: as in the run)"
    )
    parser.add_argument(
        "--num-workers", type=int, default=0, metavar="INT", help="threads that read ahead"
    )
    parser.add_argument(
        "--force-cpu", action="store_true", help="use the CPU even where there is an accelerator"
    )


def scoring_settings(config: Config, options: argparse.Namespace) -> Config:
    """The settings of a run, with those of this command; raises ConfigError for a wrong one."""
    config = replace(
        config,
        num_workers=options.num_workers,
        force_cpu=options.force_cpu,
        amp=True,
        precision="32",
    )
    if options.batch_size is not None:
        config = replace(config, batch_size=options.batch_size)
    check_config(config)
    return config
