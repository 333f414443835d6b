"""Run every benchmark, one after the other.

Each runs in a process of its own, with its default sizes. One that fails, or misses a program, does
not stop the others, and is named at the end (exit status 1). `benchmarks.revisions` is left out:
it compares two revisions. On another machine, or beside other programs, figures differ: measure on
a quiet one.

    python -m benchmarks.all            # prints all tables
    python -m benchmarks.all --save     # replaces the committed ones; git diff says what changed
    python -m benchmarks.figures        # then the figures of the README and the documents
"""

import subprocess
import sys

from benchmarks.harness import parser

JOBS = (
    "row_sizes",
    "workers",
    "small_records",
    "tokens",
    "peers",
    "legacy",
    "checked",
    "index",
    "codecs",
    "cold",
    "partial",
    "scale",
    "scale --limit-mb 1024",
    "write",
    "tiny_rows",
    "verify",
    "remote",
    "remote --far",
    "remote --tls",
    "mirrored",
    "known_signal",
    "coverage",
    "coverage --part metrics",
    "coverage --part risk",
    "coverage --part trainings",
)


def main() -> int:
    """Run them with the options given; the exit status."""
    parser(__doc__, size_mb=0).parse_args()
    failed = [job for job in JOBS if not succeeds(job)]
    print("failed:", ", ".join(failed) or "none")
    return int(bool(failed))


def succeeds(job: str) -> bool:
    """Run a benchmark."""
    print(f"\npython -m benchmarks.{job}", flush=True)
    module, *options = job.split()
    command = [sys.executable, "-m", f"benchmarks.{module}", *options, *sys.argv[1:]]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
