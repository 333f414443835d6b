from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from store.read.arrays.buffers import SMALL_BYTES, BufferPool, block_bytes

F32 = np.dtype("float32")
SHAPE = (SMALL_BYTES, 2)


def test_a_block_returns_when_nothing_refers_to_it():
    """Neither a view, a tensor, a slice of it nor its array may outlive the lease."""
    pool = BufferPool()
    array = pool.empty(SHAPE, F32)
    address = array.ctypes.data
    tensor = torch.from_numpy(array)[3:5]
    tensor[:] = 7
    del array
    other = pool.empty(SHAPE, F32)
    assert other.ctypes.data != address
    other[:] = 1
    assert (tensor == 7).all()
    last = tensor.numpy()
    del tensor
    assert pool.empty(SHAPE, F32).ctypes.data != address
    del last
    assert pool.empty(SHAPE, F32).ctypes.data == address


def test_idle_memory_is_bounded():
    pool = BufferPool(max_idle_bytes=20 * block_bytes(SMALL_BYTES * 8))
    arrays = [pool.empty(SHAPE, F32) for _ in range(40)]
    del arrays
    assert len(pool._idle) == 20


def test_blocks_waste_little():
    for n_bytes in (1, 4095, 4096, 65_537, 2**20 + 1, 33_554_433):
        assert n_bytes <= block_bytes(n_bytes) <= max(4096, n_bytes * 1.125)


def test_threads_share_a_pool():
    """Each writes its mark, lets others run, and finds its mark again."""
    pool = BufferPool()

    def is_right(mark):
        array = pool.empty(SHAPE, F32)
        array[:] = mark
        return (array == mark).all()

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(is_right, range(800)))
