"""Blocks of batches: used again when nobody looks into them, and never before."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest

from kinemill.loaders.memory import Blocks

MIB = 1 << 20


def test_a_block_serves_again_once_its_array_is_gone() -> None:
    # Given a block that was used and let go
    blocks = Blocks()
    (first,) = blocks.lease([MIB])
    first[:] = 7
    del first
    # When the next one of its size is wanted
    (second,) = blocks.lease([MIB])
    # Then it is the same memory
    assert (blocks.made, blocks.reused) == (1, 1)
    assert second[0] == 7


def test_memory_in_use_is_never_given_twice() -> None:
    blocks = Blocks()
    held = [blocks.lease([MIB, MIB])[i] for i in (0, 1) for _ in range(4)]
    for i, array in enumerate(held):
        array[:] = i
    assert [int(a.min()) for a in held] == [int(a.max()) for a in held] == list(range(8))


def test_a_tensor_and_whatever_is_made_from_it_holds_the_block() -> None:
    torch = pytest.importorskip("torch")
    blocks = Blocks()
    (array,) = blocks.lease([MIB])
    array[:] = 3
    view = torch.from_numpy(array).view(torch.float32)[100:200].numpy()
    pointer = view.ctypes.data
    del array
    gc.collect()
    # When the array and the tensors are gone but a view of theirs is not
    others = [blocks.lease([MIB])[0] for _ in range(3)]
    for one in others:
        one[:] = 9
    # Then the view is untouched, and its block comes back after it
    assert blocks.reused == 0
    assert (view.view(np.uint8) == 3).all()
    del view
    (again,) = blocks.lease([MIB])
    assert again.ctypes.data <= pointer < again.ctypes.data + MIB


def test_what_is_kept_free_is_bounded_by_two_batches() -> None:
    # Given a caller that held ten batches at once
    blocks = Blocks()
    held = [blocks.lease([MIB, 3 * MIB]) for _ in range(10)]
    # When all are let go
    held.clear()
    gc.collect()
    # Then two batches' worth is kept, and no more once batches are small
    assert blocks.free_bytes <= 2 * (MIB + 4 * MIB)
    blocks.lease([1])
    assert blocks.free_bytes <= 2 * 4096


def test_sizes_that_nearly_agree_share_blocks() -> None:
    blocks = Blocks()
    blocks.lease([5 * MIB])
    blocks.lease([5 * MIB + 17])
    blocks.lease([5 * MIB + 4096])
    assert blocks.made == 1


def test_any_thread_may_let_go() -> None:
    blocks = Blocks()
    box = blocks.lease([MIB] * 8)
    threads = [threading.Thread(target=box.pop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert blocks.free_bytes == 8 * MIB
    again = blocks.lease([MIB] * 8)
    assert len({a.ctypes.data for a in again}) == 8
    assert (blocks.made, blocks.reused) == (8, 8)


def test_letting_go_never_waits_for_the_lock() -> None:
    # Given the lock in other hands (as when the collector runs inside a lease)
    blocks = Blocks()
    (array,) = blocks.lease([MIB])
    with blocks._lock:
        del array
        gc.collect()
        assert blocks.free_bytes == MIB
    # Then the block is there for the next
    blocks.lease([MIB])
    assert blocks.made == 1


def test_a_forked_child_starts_with_none_of_the_parents() -> None:
    blocks = Blocks()
    blocks.lease([MIB])
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            blocks.lease([MIB])
            os.write(write, bytes([blocks.made, blocks.reused]))
        finally:
            os._exit(0)
    os.close(write)
    told = os.read(read, 2)
    os.close(read)
    os.waitpid(pid, 0)
    assert told == bytes([1, 0])
