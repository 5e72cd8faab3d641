"""Building an image for real: what is killed leaves nothing, and the next build is whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kinemill.control.sandbox import images
from support.cluster import need_sandbox, wait_for


def processes_of(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words:
            found.append(process.name)
    return found


@pytest.mark.full("cluster")
def test_a_killed_build_leaves_nothing_and_the_next_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_sandbox()
    # given a build, killed while it unpacks packages
    monkeypatch.setenv("KINEMILL_SANDBOX_CACHE", str(tmp_path))
    code = "from kinemill.control.sandbox.images import build; build('bookworm')"
    process = subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ))
    making = tmp_path / "images" / f"bookworm-{images.RECIPES['bookworm'].digest}.making"
    wait_for("unpacking", (making / "root" / "usr" / "bin").is_dir, deadline_s=600)
    assert processes_of(making)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # then its processes and mounts go with it
    wait_for("its end", lambda: not processes_of(making))
    assert str(making) not in Path("/proc/self/mounts").read_text()
    assert images.find("bookworm") is None
    # and the next build succeeds over the debris
    made = images.build("bookworm")
    assert (made.root / "usr" / "sbin" / "sshd").is_file()
    assert not making.exists()
    # and holds no key and no identity
    assert list((made.root / "etc" / "ssh").glob("ssh_host_*")) == []
    assert (made.root / "etc" / "machine-id").read_text() == ""
