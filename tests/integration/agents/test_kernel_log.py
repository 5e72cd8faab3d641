"""The kernel log as a file of a test bed and as the device: floods, clock jumps, torn lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kinemill.agents.probes import kernel_log
from kinemill.agents.runner import run_probes
from support.agents import context
from support.layers import skip_if

XID = "4,{seq},{us},-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


def read(path: Path) -> dict[str, Any]:
    """What the probe emits, in a child as in a run."""
    facts = run_probes(context(kernel_log=path), ["kernel_log"])
    assert facts.ended == {"kernel_log": "ok"}, facts.values
    return facts.values


def test_wall_clocks_play_no_part(tmp_path: Path) -> None:
    """Stamps are since boot: 1 January and a clock that jumped back change nothing."""
    (tmp_path / "kmsg").write_text(
        XID.format(seq=2, us=5_000_000) + "\n6,3,6000000,-;rtc: clock set back to 1970-01-01\n" + " SUBSYSTEM=pci\n"
    )
    found = read(tmp_path / "kmsg")
    assert found["kernel.lines"] == [[5.0, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."]]
    assert (found["kernel.seen"], found["kernel.last_s"], found["kernel.lost"]) == (2, 6.0, False)


def test_a_flood_is_cut_and_said_and_the_newest_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "MAX_LINES", 100)
    monkeypatch.setattr(kernel_log, "_MAX_BYTES", 1 << 16)
    with (tmp_path / "kmsg").open("w") as log:
        for i in range(3000):
            log.write(f"3,{i},{i * 1000},-;nvme nvme0: I/O error, dev nvme0n1, sector {i}\n")
        log.write(XID.format(seq=3001, us=9_000_000) + "\n")
    found = read(tmp_path / "kmsg")
    assert found["kernel.lost"] is True
    assert len(found["kernel.lines"]) == 100
    assert "Xid" in found["kernel.lines"][-1][1]


def test_bytes_that_are_no_text_and_a_last_line_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_bytes(b"\xff\xfe\x00garbage\n4,1,x,-;no\n" + XID.format(seq=1, us=1_000_000).encode())
    assert len(read(tmp_path / "kmsg")["kernel.lines"]) == 1


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "kmsg").symlink_to(tmp_path / "real")
    facts = run_probes(context(kernel_log=tmp_path / "kmsg"), ["kernel_log"])
    assert facts.get("kernel.lines") is None
    assert facts.ended == {"kernel_log": "died(3)"}


def _can_read_device() -> bool:
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@skip_if(
    not _can_read_device(), "this machine gives no /dev/kmsg to read", run="make test as root on a machine of its own"
)
def test_the_device_itself_is_read_to_its_end_without_waiting() -> None:
    found = read(Path("/dev/kmsg"))
    assert found["kernel.seen"] > 0
    assert found["kernel.last_s"] > 0
