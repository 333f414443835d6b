"""Plans as lines for people."""

from collections.abc import Iterable, Sequence
from typing import Any

from store.reports import count
from store.sources.plan.extraction import CERTAINTY, ExtractionPlan
from store.sources.plan.machine import DiskSpeed, Machine
from store.sources.plan.sizes import ColumnSize
from store.sources.plan.training import Reading, TrainingPlan

__all__ = [
    "bytes_text",
    "extraction_report",
    "memory_remarks",
    "training_json",
    "training_report",
]


def extraction_report(plan: ExtractionPlan) -> str:
    """The plan of an extraction: a table of its columns, then disk, memory and time."""
    size = plan.size
    files = count(size.n_files, "file")
    lines = [
        f"{plan.out}: {count(size.n_rows, 'trace')} of {count(plan.n_questions, 'question')}, "
        f"{bytes_text(size.n_bytes)} in {files}",
        f"  {plan.mean_tokens:,.1f} tokens a trace; {CERTAINTY[plan.certainty]}",
    ]
    lines += ["", *_column_table(size.columns, size.n_rows, size.n_bytes), ""]
    lines += [_disk_line(plan), *_memory_lines(plan), *_time_lines(plan)]
    lines += [f"  {remark}" for remark in plan.remarks]
    return "\n".join(lines)


def memory_remarks(plan: ExtractionPlan, machine: Machine) -> list[str]:
    """Where this machine has less memory than is needed."""
    need = plan.memory
    advice = "batches are halved where memory does not suffice; or lower --batch-size"
    if plan.device == "cpu":
        needed = plan.n_workers * (need.device + need.host)
        there = machine.available_bytes
        place = "of memory are free on this machine"
    elif machine.gpus:
        needed = need.device
        there = machine.gpus[0].n_bytes
        place = f"are on the {machine.gpus[0].name}"
    else:
        return []
    if needed <= there:
        return []
    workers = count(plan.n_workers, "worker") if plan.device == "cpu" else "the model"
    return [f"{workers} would need {bytes_text(needed)}, and {bytes_text(there)} {place}: {advice}"]


def _disk_line(plan: ExtractionPlan) -> str:
    verdict = "it fits" if plan.fits else "IT DOES NOT FIT: keep fewer --columns or --layers"
    size = plan.size
    return (
        f"disk: {bytes_text(size.disk_bytes)} of the {bytes_text(plan.free_bytes)} that are free, "
        f"with the blocks of {count(size.n_folders, 'folder')}; {verdict}"
    )


def _memory_lines(plan: ExtractionPlan) -> list[str]:
    need = plan.memory
    each = " each" if plan.n_workers > 1 else ""
    parts = (
        f"weights {bytes_text(need.weights)}, a batch of {plan.batch_size} "
        f"{bytes_text(max(need.generation, need.second_pass))}"
    )
    host = f"columns {bytes_text(need.columns)}, the process {bytes_text(need.process)}"
    if plan.device == "cpu":
        total = bytes_text(need.device + need.host)
        return [f"memory: {total}{each} at the peak ({parts}, {host})"]
    return [
        f"memory: {bytes_text(need.device)}{each} on the device ({parts})",
        f"        {bytes_text(need.host)}{each} on the machine ({host})",
    ]


def _time_lines(plan: ExtractionPlan) -> list[str]:
    if plan.speed is None or plan.time is None:
        return ["time: not known; --sample 8 measures it, where the weights are"]
    speed = plan.speed
    passes = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in speed.passes.items())
    of_sample = count(speed.n_questions, "question")
    lines = [
        f"time: {_clock(plan.time.seconds)} with {count(plan.n_workers, 'worker')}, "
        f"{count(plan.time.worker_questions, 'question')} each",
        f"  {speed.question_s:.3g} s a question ({passes}), loading {speed.load_s:.1f} s; "
        f"measured with {of_sample} in batches of {min(speed.n_questions, plan.batch_size)}",
    ]
    if plan.n_workers > 1:
        lines.append("  each worker with a device of its own, as fast as this one")
    if speed.n_questions < plan.batch_size:
        lines.append("  full batches may be faster; --sample of a whole batch or two tells")
    return lines


def training_report(
    plan: TrainingPlan, where: str, machine: Machine, disk: DiskSpeed | None
) -> str:
    """The plan of a training: what it reads, what stays in memory, and how to read it."""
    lines = [
        f"{where}: {count(plan.n_rows, 'trace')}, {bytes_text(plan.epoch_bytes)} an epoch, "
        f"{bytes_text(plan.row_bytes)} a trace",
    ]
    lines += ["", *_column_table(plan.columns, plan.n_rows, plan.epoch_bytes), ""]
    lines += _machine_lines(plan, machine)
    lines += _disk_lines(plan, disk)
    lines += _advice_lines(plan)
    return "\n".join(lines)


def training_json(
    plan: TrainingPlan, where: str, machine: Machine, disk: DiskSpeed | None
) -> dict[str, Any]:
    """The same for programs; bytes and seconds."""
    return {
        "store": where,
        **plan._asdict(),
        "columns": {column.name: column._asdict() for column in plan.columns},
        "advice": plan.advice._asdict(),
        "machine": {**machine._asdict(), "gpus": [gpu._asdict() for gpu in machine.gpus]},
        "disk": None if disk is None else disk._asdict(),
    }


def _machine_lines(plan: TrainingPlan, machine: Machine) -> list[str]:
    gpus = [f"{gpu.name} ({bytes_text(gpu.n_bytes)})" for gpu in machine.gpus]
    shared = count(plan.n_processes, "process", "processes")
    return [
        f"machine: {count(machine.n_cores, 'core')}, {bytes_text(machine.available_bytes)} of "
        f"{bytes_text(machine.memory_bytes)} of memory free, {', '.join(gpus) or 'no GPU'}; "
        f"{shared}",
        f"page cache: {plan.cached:.0%} of an epoch stays in memory",
    ]


def _disk_lines(plan: TrainingPlan, disk: DiskSpeed | None) -> list[str]:
    if disk is None or disk.bytes_per_s is None:
        return ["disk: too little is there to read, so its speed is not known"]
    first_s = plan.epoch_bytes / disk.bytes_per_s
    lines = [
        f"disk: {bytes_text(disk.bytes_per_s)}/s, from {bytes_text(disk.n_bytes)} at random "
        f"places; {disk.cached:.0%} of the files was in memory",
        f"  the first epoch reads {bytes_text(plan.epoch_bytes)}: {_clock(first_s)}, if none of "
        "it is in memory",
    ]
    if plan.disk_s:
        later = bytes_text(plan.disk_bytes)
        lines.append(f"  each later one reads {later}: at least {_clock(plan.disk_s)}")
    return lines


def _advice_lines(plan: TrainingPlan) -> list[str]:
    advice = plan.advice
    command = f"python -m train --num-workers {advice.num_workers}"
    if advice.cache_bytes:
        command += f" --cache-size {advice.cache_bytes}"
    loader = (
        f"TraceLoader(..., num_workers={advice.num_workers}, "
        f"prefetch_bytes={advice.prefetch_bytes}, cache_bytes={advice.cache_bytes}, "
        f"pin_memory={advice.pin_memory})"
    )
    return [
        f"recommended{', for each process' if plan.n_processes > 1 else ''}: {command}",
        f"  in Python: {loader}",
        *(f"  {reason}" for reason in advice.reasons),
    ]


def bytes_text(n_bytes: float) -> str:
    """Bytes for people: 978.9 kB, 1.2 GB."""
    if n_bytes < 1000:
        return f"{n_bytes:.0f} B"
    for unit in ("kB", "MB", "GB"):
        n_bytes /= 1000
        if n_bytes < 999.95:
            return f"{n_bytes:.1f} {unit}"
    return f"{n_bytes / 1000:,.1f} TB"


def _clock(seconds: float) -> str:
    """Seconds for people: 12 s, 3.4 min, 5.6 h, 2.3 days."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1 else "under a second"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def _column_table(columns: Sequence[ColumnSize | Reading], n_rows: int, n_bytes: int) -> list[str]:
    """Lines of a table of columns, the largest first, with their shares of `n_bytes`."""
    rows = [
        (
            column.name,
            bytes_text(column.n_bytes / max(1, n_rows)),
            bytes_text(column.n_bytes),
            f"{column.n_bytes / max(1, n_bytes):.1%}",
        )
        for column in sorted(columns, key=lambda column: -column.n_bytes)
    ]
    return _table(("column", "a trace", "total", "share"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of aligned cells: the first column to the left, numbers to the right."""
    cells = [tuple(head), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for first, *numbers in cells:
        aligned = map(str.rjust, numbers, widths[1:])
        lines.append("  ".join([first.ljust(widths[0]), *aligned]))
    return lines
