"""What comes out means what went in: the picture of a moment shows the disc that its command reaches for.

One test for units, joint order, colours, clocks and the pairing of pictures with rows, over all three vendors, through
the reader that training uses.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kinemill.episode import EpisodeReader, Layout, Window
from kinemill.pipelines.drops.arm import forward
from kinemill.pipelines.ingest import MemoryLedger
from kinemill.store import MemoryStore
from support.ingest import disc_at, ingest, shared_drops

WIDTH, HEIGHT, SPAN_M, CENTRE_Y_M = 96, 64, 2.3, 0.62


@pytest.mark.parametrize("vendor", ["gantry_ros2", "twinarm_aloha", "deskarm_lerobot"])
def test_the_picture_shows_what_the_command_reaches_for(vendor: str, tmp_path: Path) -> None:
    store, ledger = MemoryStore(), MemoryLedger()
    ingest(shared_drops()[vendor].path, vendor, tmp_path / "w", store=store, ledger=ledger)
    assert ledger.episodes

    for entry in ledger.episodes.values():
        receipt = entry.rendition.receipt
        topics, packed = Layout.from_receipt(receipt).columns()
        reader = EpisodeReader.open(store, entry.rendition.key, layout=Layout.from_columns(topics, packed))
        times = np.linspace(receipt.t_first_ns + 60_000_000, receipt.t_last_ns - 60_000_000, 25).astype(np.int64)
        shown_ns, pictures, blind = reader.read([Window.at("/cam/scene", times.tolist())])["/cam/scene"]
        # The command that stood when the picture was taken, not when it is asked for.
        commands_ns, commands, _ = reader.read([Window.at("/action", shown_ns.tolist())])["/action"]
        assert not blind.any()
        assert (commands_ns == shown_ns).all()

        seen = 0
        for picture, command in zip(pictures, commands, strict=True):
            disc = disc_at(picture)
            if disc is None:
                continue
            seen += 1
            goal = forward(command)[2]
            assert disc[0] == pytest.approx(WIDTH / 2 + goal[0] * WIDTH / SPAN_M, abs=2.5)
            assert disc[1] == pytest.approx(HEIGHT / 2 - (goal[1] - CENTRE_Y_M) * WIDTH / SPAN_M, abs=2.5)
            assert disc[2] == ("magenta" if command[3] > 0.04 else "cyan")
        assert seen > 20
