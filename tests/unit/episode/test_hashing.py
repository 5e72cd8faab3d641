"""A stream's sha256 and CRC, taken in a thread, whatever the sizes of its pieces."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np
import pytest

from kinemill.episode.hashing import StreamHash

DATA = np.random.default_rng(2).bytes(9 << 20)


@pytest.mark.parametrize("most", [7_000, 300_000, 3 << 20])
def test_a_stream_in_pieces_has_the_hash_and_crc_of_the_whole(most: int) -> None:
    # given pieces of any length, of which the largest pass uncopied
    rng = np.random.default_rng(most)
    digest = StreamHash()
    at = middle = 0
    while at < len(DATA):
        size = int(rng.integers(0, most))
        digest.update(memoryview(DATA)[at : at + size])
        at = min(at + size, len(DATA))
        # when the CRC is asked for on the way
        if not middle and at > len(DATA) // 2:
            middle = at
            assert digest.crc() == zlib.crc32(DATA[:middle])
    # then it goes on behind that
    assert digest.crc() == zlib.crc32(DATA)
    assert digest.hexdigest() == hashlib.sha256(DATA).hexdigest()


def test_a_short_stream_starts_no_thread() -> None:
    digest = StreamHash()
    digest.update(b"abc")
    assert digest.crc() == zlib.crc32(b"abc")
    digest.update(b"def")
    assert digest._thread is None
    assert digest.hexdigest() == hashlib.sha256(b"abcdef").hexdigest()


def test_memory_that_the_caller_uses_again_is_let_go_once_it_is_hashed() -> None:
    # given a large piece out of memory that is used again as soon as no view of it is left
    memory = bytearray(DATA[: 2 << 20])
    digest = StreamHash()
    digest.update(memoryview(memory))
    # when all of it is hashed
    digest.crc()
    # then its size can be changed, and what it held was hashed before
    memory.append(0)
    memory[:] = bytes(len(memory))
    assert digest.hexdigest() == hashlib.sha256(DATA[: 2 << 20]).hexdigest()
