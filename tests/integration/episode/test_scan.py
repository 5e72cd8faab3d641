"""Files are read into blocks that are used again, but never while somebody looks at a record in one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kinemill.contracts.episode import TopicKind
from kinemill.episode import EpisodeWriter, TopicSpec
from kinemill.episode.scan import FileSource, records_in
from support.episode import EPISODE, stamp


def test_records_that_are_kept_stay_what_they_were(tmp_path: Path) -> None:
    # given a file of 30 MB in chunks of many sizes, some over a block
    rng = np.random.default_rng(1)
    path = tmp_path / "e.mcap"
    topic = TopicSpec("/blob", TopicKind.OTHER, schema="Blob", encoding="raw")
    with EpisodeWriter(path, episode_id=EPISODE, topics=[topic]) as writer:
        for k in range(30):
            writer.message("/blob", stamp(30 * k), rng.bytes(int(rng.integers(1_000, 2_000_000))))
        writer.message("/blob", stamp(30 * 31), rng.bytes(6_000_000))
    whole = path.read_bytes()
    # when every third record is kept to the end, the others are let go
    kept = []
    with FileSource(path) as source:
        for number, record in enumerate(records_in(source)):
            assert record.data == whole[record.offset : record.offset + len(record.data)]
            if number % 3 == 0:
                kept.append(record)
            del record
        # then those kept still hold their own bytes
        for record in kept:
            assert record.data == whole[record.offset : record.offset + len(record.data)]
            start = record.block_at
            assert record.block == whole[start : start + len(record.block)]
