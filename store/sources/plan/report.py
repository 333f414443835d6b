"""Plans as lines for people."""

from typing import Any

from store.reports import count
from store.sources.plan.extraction import ExtractionPlan
from store.sources.plan.machine import DiskSpeed, Machine
from store.sources.plan.text import bytes_text, clock_text, column_table
from store.sources.plan.training import TrainingPlan

__all__ = ["extraction_report", "training_json", "training_report"]

CERTAINTY = {  # what is known of the answers -> in words
    "given": "the answers are given, so lengths are known",
    "sample": "answers as long as in a sample",
    "longest": "at most: every answer as long as --max-new-tokens allows",
}


def extraction_report(plan: ExtractionPlan) -> str:
    """The plan of an extraction: a table of its columns, then disk, memory and time."""
    size = plan.size
    verdict = "it fits" if plan.fits else "IT DOES NOT FIT: keep fewer --columns or --layers"
    lines = [
        f"{plan.out}: {count(size.n_rows, 'trace')} of {count(plan.n_questions, 'question')}, "
        f"{bytes_text(size.n_bytes)} in {count(size.n_files, 'file')}",
        f"  {plan.tokens_per_trace:,.1f} tokens a trace; {CERTAINTY[plan.lengths.certainty]}",
        "",
        *column_table(size.columns, size.n_rows),
        "",
        f"disk: {bytes_text(size.disk_bytes)} of the {bytes_text(plan.free_bytes)} that are free, "
        f"with the blocks of {count(size.n_folders, 'folder')}; {verdict}",
        _memory_line(plan),
        *_time_lines(plan),
        *(f"  {remark}" for remark in plan.remarks),
    ]
    return "\n".join(lines)


def _memory_line(plan: ExtractionPlan) -> str:
    each = " each" if plan.n_workers > 1 else ""
    known = (
        f"weights {bytes_text(plan.weight_bytes)}, columns of batches of {plan.batch_size} "
        f"{bytes_text(plan.column_bytes)}"
    )
    if plan.peaks is None:
        return f"memory: {known}{each}; --sample 8 measures the peak, where the weights are"
    host, device = map(bytes_text, plan.peaks)
    if plan.device != "cpu":
        host = f"{device}{each} on the device, {host} on the machine"
    return (
        f"memory: {host}{each} at the peak ({known}); that of the sample, scaled to whole batches "
        "of the longest traces"
    )


def _time_lines(plan: ExtractionPlan) -> list[str]:
    sample, seconds = plan.sample, plan.seconds
    if sample is None or seconds is None:
        return ["time: not known; --sample 8 measures it, where the weights are"]
    passes = ", ".join(f"{name} {spent:.3g} s" for name, spent in sample.passes.items())
    lines = [
        f"time: {clock_text(seconds)} with {count(plan.n_workers, 'worker')}, "
        f"{count(plan.worker_questions, 'question')} each",
        f"  {sample.question_s:.3g} s a question ({passes}), loading {sample.load_s:.1f} s; "
        f"measured with {count(sample.n_questions, 'question')} in batches of {sample.n_traces}",
    ]
    if plan.n_workers > 1:
        lines.append("  each worker with a device of its own, as fast as this one")
    if sample.n_traces < plan.batch_size:
        lines.append("  full batches may be faster; --sample of a whole batch or two tells")
    return lines


def training_report(
    plan: TrainingPlan, where: str, machine: Machine, disk: DiskSpeed | None
) -> str:
    """The plan of a training: what it reads, what stays in memory, and how to read it."""
    columns = {column.name: column.n_bytes for column in plan.columns}
    gpus = [f"{gpu.name} ({bytes_text(gpu.n_bytes)})" for gpu in machine.gpus]
    lines = [
        f"{where}: {count(plan.n_rows, 'trace')}, {bytes_text(plan.epoch_bytes)} an epoch, "
        f"{bytes_text(plan.row_bytes)} a trace",
        "",
        *column_table(columns, plan.n_rows),
        "",
        f"machine: {count(machine.n_cores, 'core')}, {bytes_text(machine.available_bytes)} of "
        f"{bytes_text(machine.memory_bytes)} of memory free, {', '.join(gpus) or 'no GPU'}; "
        f"{count(plan.n_processes, 'process', 'processes')}",
        f"page cache: {plan.cached:.0%} of an epoch stays in memory",
        *_disk_lines(plan, disk),
        *_advice_lines(plan),
    ]
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


def _disk_lines(plan: TrainingPlan, disk: DiskSpeed | None) -> list[str]:
    if disk is None or disk.bytes_per_s is None:
        return ["disk: too little is there to read, so its speed is not known"]
    first = clock_text(plan.epoch_bytes / disk.bytes_per_s)
    lines = [
        f"disk: {bytes_text(disk.bytes_per_s)}/s, from {bytes_text(disk.n_bytes)} at random "
        f"places; {disk.cached:.0%} of the files was in memory",
        f"  the first epoch reads {bytes_text(plan.epoch_bytes)}: {first}, if none of it is in "
        "memory",
    ]
    if plan.disk_s:
        later = bytes_text(plan.disk_bytes)
        lines.append(f"  each later one reads {later}: at least {clock_text(plan.disk_s)}")
    return lines


def _advice_lines(plan: TrainingPlan) -> list[str]:
    advice = plan.advice
    command = f"python -m train --num-workers {advice.num_workers}"
    if advice.cache_bytes:
        command += f" --cache-size {advice.cache_bytes}"
    return [
        f"recommended{', for each process' if plan.n_processes > 1 else ''}: {command}",
        f"  in Python: TraceLoader(..., num_workers={advice.num_workers}, "
        f"prefetch_bytes={advice.prefetch_bytes}, cache_bytes={advice.cache_bytes}, "
        f"pin_memory={advice.pin_memory})",
        *(f"  {reason}" for reason in advice.reasons),
    ]
