"""What this machine has: memory and GPUs; and times and bytes as plans print them."""

from collections.abc import Mapping
from typing import NamedTuple

from store.memory_limits import read_memory
from store.reports import size_text

__all__ = ["Gpu", "Machine", "clock_text", "column_table", "read_machine"]


def clock_text(seconds: float) -> str:
    """Seconds for people: 12 s, 3.4 min, 5.6 h, 2.3 days."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1 else "under a second"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def column_table(columns: Mapping[str, int], n_rows: int) -> list[str]:
    """Lines of a table of columns and their bytes, the largest first."""
    total = max(1, sum(columns.values()))
    width = max(map(len, columns), default=0)
    lines = [f"{'column':<{width}}  {'a trace':>9}  {'total':>9}  {'share':>6}"]
    for name, n_bytes in sorted(columns.items(), key=lambda item: -item[1]):
        of_trace, of_all = size_text(n_bytes / max(1, n_rows)), size_text(n_bytes)
        lines.append(f"{name:<{width}}  {of_trace:>9}  {of_all:>9}  {n_bytes / total:>6.1%}")
    return lines


class Gpu(NamedTuple):
    """A GPU, and the bytes of its memory."""

    name: str
    n_bytes: int


class Machine(NamedTuple):
    """What this machine has for this process: free memory (see `memory_limits`) and GPUs."""

    available_bytes: int
    gpus: list[Gpu]


def read_machine() -> Machine:
    import torch

    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    gpus = [Gpu(device.name, device.total_memory) for device in devices]
    return Machine(read_memory().available, gpus)
