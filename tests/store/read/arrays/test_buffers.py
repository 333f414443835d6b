import threading

import numpy as np
import pytest
import torch

from store.read.arrays.buffers import MOST_BLOCKS, SMALL_BYTES, BufferPool, block_bytes

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


def test_bfloat16_tensors_hold_their_block():
    pool = BufferPool()
    tensor = torch.from_numpy(pool.empty(SHAPE, np.dtype("int16"))).view(torch.bfloat16)
    tensor[:] = 3
    pool.empty(SHAPE, np.dtype("int16"))[:] = 0
    assert (tensor == 3).all()


def test_idle_memory_is_bounded():
    pool = BufferPool(max_idle_bytes=20 * block_bytes(SMALL_BYTES * 8))
    arrays = [pool.empty(SHAPE, F32) for _ in range(40)]
    del arrays
    assert sum(map(len, pool._idle)) <= pool.max_idle_bytes


@pytest.mark.parametrize(("in_use", "kept"), [(3, 3), (40, MOST_BLOCKS)])
def test_of_blocks_too_large_for_the_bound_a_few_are_kept(in_use, kept):
    pool = BufferPool(max_idle_bytes=1, most_bytes=2**30)
    arrays = [pool.empty(SHAPE, F32) for _ in range(in_use)]
    del arrays
    assert len(pool._idle) == kept


def test_large_blocks_are_not_kept_beyond_a_bound():
    n_bytes = block_bytes(SMALL_BYTES * 8)
    pool = BufferPool(max_idle_bytes=1, most_bytes=2 * n_bytes)
    arrays = [pool.empty(SHAPE, F32) for _ in range(6)]
    del arrays
    assert sum(map(len, pool._idle)) <= 2 * n_bytes


def test_a_small_block_drives_no_large_one_out():
    """An epoch ends with a short batch, and the next one begins with a whole one."""
    pool = BufferPool(max_idle_bytes=1, most_bytes=2**30)
    whole = [pool.empty(SHAPE, F32) for _ in range(2)]
    del whole
    short = pool.empty((SMALL_BYTES // 4,), F32)
    del short
    assert len(pool._idle) == 3


@pytest.mark.parametrize("n_bytes", [1, 4095, 4096, 65_537, 2**20 + 1, 33_554_433])
def test_blocks_waste_little(n_bytes):
    assert n_bytes <= block_bytes(n_bytes) <= max(4096, n_bytes * 1.125)


def test_threads_share_a_pool():
    """Each writes its mark, lets others run, and finds its mark again."""
    pool, wrong = BufferPool(), []

    def work(mark):
        for _ in range(200):
            array = pool.empty(SHAPE, F32)
            array[:] = mark
            if not (array == mark).all():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
