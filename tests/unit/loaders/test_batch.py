"""Where the tensors of a batch lie."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install kinemill-loaders[torch]")

from kinemill.loaders.batch import BLOCK_FROM, BatchBuffer
from kinemill.loaders.fields import Field
from kinemill.loaders.memory import Blocks
from kinemill.loaders.windows import steps


def camera(key: str, height: int, width: int) -> Field:
    size = (height, width)
    return Field(key, key, True, steps(0), None, 0, size, size, (1, height, width, 3))


ROWS = Field("/action", "/action", False, steps(range(50)), None, 0, (0, 0), (0, 0), (50, 14))
SMALL = [camera(f"/cam/{i}", 480, 640) for i in range(4)]


def span(buffer: BatchBuffer, key: str) -> range:
    tensor = buffer.tensors[key]
    return range(tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size())


def test_tensors_below_a_huge_page_share_a_block_where_they_fill_one() -> None:
    # Given one sample of four cameras, each below a huge page
    blocks = Blocks()
    buffer = BatchBuffer((*SMALL, ROWS), 1, blocks=blocks)
    # Then their tensors are one block, in which none reaches into another
    assert blocks.made == 1
    spans = sorted((span(buffer, one.key) for one in SMALL), key=lambda s: s.start)
    assert all(len(s) == 480 * 640 * 3 for s in spans)
    assert all(a.stop <= b.start for a, b in itertools.pairwise(spans))
    assert spans[-1].stop - spans[0].start <= 4 * (480 * 640 * 3 + 64)
    # And the next sample has that block again once all of them are gone
    del buffer
    gc.collect()
    BatchBuffer((*SMALL, ROWS), 1, blocks=blocks)
    assert (blocks.made, blocks.reused) == (1, 1)


def test_a_shared_block_is_kept_by_any_of_its_tensors() -> None:
    blocks = Blocks()
    buffer = BatchBuffer(tuple(SMALL), 1, blocks=blocks)
    buffer.slots(0).data["/cam/2"][...] = 7
    kept = buffer.tensors["/cam/2"]
    del buffer
    gc.collect()
    other = BatchBuffer(tuple(SMALL), 1, blocks=blocks)
    for one in SMALL:
        other.slots(0).data[one.key][...] = 9
    assert (kept.numpy() == 7).all()
    assert blocks.reused == 0


def test_a_large_tensor_has_a_block_of_its_own_and_little_ones_have_none() -> None:
    blocks = Blocks()
    large = camera("/cam/large", 1080, 1920)
    buffer = BatchBuffer((large, SMALL[0], ROWS), 1, blocks=blocks)
    assert blocks.made == 1  # one small camera does not fill a block
    # And that one block, in whole huge pages, is all that comes back
    del buffer
    gc.collect()
    size = int(np.prod(large.shape))
    assert blocks.free_bytes == -(-size // BLOCK_FROM) * BLOCK_FROM
