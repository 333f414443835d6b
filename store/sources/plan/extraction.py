"""What an extraction will need, put together from its sizes, its memory and a sample. Pure."""

import math
from typing import Any, NamedTuple

from store.sources.plan.memory import MemoryNeed
from store.sources.plan.sizes import OVERHEAD, StoreSize

__all__ = ["CERTAINTY", "ExtractionPlan", "Speed", "TimeNeed", "plan_time"]

CERTAINTY = {  # what is known of the answers -> in words
    "given": "the answers are given, so lengths are known",
    "sample": "answers as long as in a sample",
    "longest": "at most: every answer as long as --max-new-tokens allows",
}


class Speed(NamedTuple):
    """How fast the model was with a few questions.

    Attributes
    ----------
    n_questions
        How many; they were one batch, or several of `--batch-size`.
    load_s
        Seconds until the first could be asked.
    question_s
        Seconds of a question.
    passes
        Part of the work -> seconds of a question.
    """

    n_questions: int
    load_s: float
    question_s: float
    passes: dict[str, float]


class TimeNeed(NamedTuple):
    """Seconds of an extraction, each worker having a device of its own."""

    worker_questions: int
    seconds: float


class ExtractionPlan(NamedTuple):
    """What an extraction will need.

    Attributes
    ----------
    out
        Where it goes.
    n_questions, n_left_out
        That will be asked, and that the model cannot take.
    size
        Of all parts together.
    certainty
        A key of `CERTAINTY`.
    mean_tokens
        Of a trace.
    memory
        Of each worker.
    batch_size
        Traces that go through the model at once.
    device
        Where the model will run.
    n_workers
        Parts that run at the same time.
    free_bytes
        On the disk of `out`.
    speed
        None without a sample.
    remarks
        What to know besides; one line each.
    """

    out: str
    n_questions: int
    n_left_out: int
    size: StoreSize
    certainty: str
    mean_tokens: float
    memory: MemoryNeed
    batch_size: int
    device: str
    n_workers: int
    free_bytes: int
    speed: Speed | None
    remarks: list[str]

    @property
    def fits(self) -> bool:
        return self.size.disk_bytes <= self.free_bytes

    @property
    def time(self) -> TimeNeed | None:
        if self.speed is None:
            return None
        return plan_time(self.n_questions, self.n_workers, self.speed)

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs; bytes and seconds."""
        size = self.size
        time = self.time
        columns = {
            column.name: {
                "bytes": column.n_bytes,
                "bytes_per_trace": column.n_bytes / max(1, size.n_rows),
                "share": column.n_bytes / size.n_bytes,
            }
            for column in size.columns
        }
        return {
            "out": self.out,
            "questions": self.n_questions,
            "left_out": self.n_left_out,
            "rows": size.n_rows,
            "certainty": self.certainty,
            "tokens_per_trace": self.mean_tokens,
            "bytes": size.n_bytes,
            "overhead_bytes": columns.pop(OVERHEAD)["bytes"],
            "columns": columns,
            "files": size.n_files,
            "folders": size.n_folders,
            "disk_bytes": size.disk_bytes,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "workers": self.n_workers,
            "memory": {
                "device": self.memory.device,
                "host": self.memory.host,
                **self.memory._asdict(),
            },
            "device": self.device,
            "batch_size": self.batch_size,
            "sample": None if self.speed is None else self.speed._asdict(),
            "seconds": None if time is None else time.seconds,
            "remarks": self.remarks,
        }


def plan_time(n_questions: int, n_workers: int, speed: Speed) -> TimeNeed:
    """Seconds until the last of the workers is done; each loads the model and takes its part."""
    worker_questions = math.ceil(n_questions / n_workers)
    return TimeNeed(worker_questions, speed.load_s + worker_questions * speed.question_s)
