"""Batches on a GPU, copied on a stream of their own while the step before computes.

What is copied was read into page-locked memory, whose blocks torch keeps and gives out again: after
the first batches nothing is allocated. A batch in it is held until its event says that the copy is
done, and there are `HELD` of them at most.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from store.errors import StoreError
from store.read.batches.batch import Batch
from store.read.batches.tensors import Ragged

__all__ = ["DeviceCopies", "cuda_device"]

AHEAD = 1  # batches on their way while one is in use
HELD = 3  # batches in page-locked memory


class Copy(NamedTuple):
    """A batch on the device, and the event of its arrival."""

    batch: Batch
    event: Any


def cuda_device(device: object) -> torch.device:
    """A device of CUDA by its name; raises ValueError for another one, or where there is none."""
    try:
        found = torch.device(device)  # type: ignore[call-overload]
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device: expected one such as 'cuda:0', found {device!r:.100}") from error
    if found.type != "cuda":
        raise ValueError(f"device: expected one of CUDA, found {device!r:.100}; leave it out")
    n = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if n <= (found.index or 0):
        raise ValueError(
            f"device: expected one of {n} of CUDA, found {device!r:.100}; leave it out"
        )
    return found


class DeviceCopies:
    """Copies batches to a device; `cuda` has the streams and events, as `torch.cuda`."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self.device = device
        self._cuda = cuda
        self._stream = cuda.Stream(device)
        self._held: deque[Copy] = deque()  # of batches in page-locked memory

    def of(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches on the device, in order; an error comes after those before it."""
        ahead: deque[Copy] = deque()
        failure = None
        try:
            for batch in batches:
                ahead.append(self._start(batch))
                if len(ahead) > AHEAD:
                    yield self._finish(ahead.popleft())
        except StoreError as error:
            failure = error
        while ahead:
            yield self._finish(ahead.popleft())
        if failure is not None:
            raise failure

    def _start(self, batch: Batch) -> Copy:
        """Begin to copy a batch, with no more in page-locked memory than may be."""
        while self._held and (len(self._held) >= HELD or self._held[0].event.query()):
            self._held.popleft().event.synchronize()
        event = self._cuda.Event()
        with self._cuda.stream(self._stream):
            moved = batch.to(self.device, non_blocking=True)
            event.record(self._stream)
        self._held.append(Copy(batch, event))
        return Copy(moved, event)

    def _finish(self, copy: Copy) -> Batch:
        """Have the stream that computes wait for a copy, and own it."""
        current = self._cuda.current_stream(self.device)
        current.wait_event(copy.event)
        for values in copy.batch.columns.values():
            for tensor in values if isinstance(values, Ragged) else [values]:
                if isinstance(tensor, Tensor) and tensor.is_cuda:
                    # else its memory might be given out again while it is read
                    tensor.record_stream(current)
        return copy.batch
