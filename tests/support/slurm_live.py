"""Slurm's commands on a sandbox's controller, as the backends call them; and recordings of what they answered."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kinemill.errors import DeadlineError
from kinemill.slurm.run import Answer, Run

if TYPE_CHECKING:
    from kinemill.control.sandbox.cluster import Cluster

__all__ = ["RECORDINGS", "Recorder", "replay", "run_on"]

RECORDINGS = Path(__file__).parent / "recordings" / "slurm"
"""`<release>-<form>/<test>.json`: the answers of one test against a live cluster, in order."""
_MARK = re.compile(r"@[0-9a-f]{32}")


def run_on(cluster: Cluster, node: str | None = None) -> Run:
    """A `Run` that reaches the cluster's controller (or `node`); paths of the shared folder become the node's."""
    shared = str(cluster.box.places.shared)

    def run(argv: Sequence[str], extra: Mapping[str, str], timeout_s: float) -> Answer:
        there = [word.replace(shared, "/shared") for word in argv]
        env = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C", **extra}
        command = cluster.box.exec_command(
            node or cluster.controller, ["env", *(f"{k}={v}" for k, v in env.items()), *there]
        )
        try:
            done = subprocess.run(
                command,
                env=dict(os.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as exc:
            raise DeadlineError(f"{argv[0]} did not answer in time") from exc
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


def _still(argv: Sequence[str]) -> list[str]:
    """The command without what differs between runs: the random mark and the script's folder."""
    return [re.sub(r"^/.*/(?=[^/]+\.sh$)", "", _MARK.sub("@MARK", word)) for word in argv]


class Recorder:
    """Passes commands on and keeps what they answered.

    Args:
        run: Where they go.
        path: Where `save` writes.
    """

    def __init__(self, run: Run, path: Path) -> None:
        self._run = run
        self._path = path
        self._kept: list[dict[str, object]] = []

    def __call__(self, argv: Sequence[str], extra: Mapping[str, str], timeout_s: float) -> Answer:
        """Run one command."""
        answer = self._run(argv, extra, timeout_s)
        out = _MARK.sub("@MARK", answer.out)
        self._kept.append({"argv": _still(argv), "code": answer.code, "out": out, "err": answer.err})
        return answer

    def save(self) -> None:
        """Write the recording."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._kept, indent=1) + "\n", encoding="utf-8")


def replay(path: Path) -> Run:
    """A `Run` that answers from a recording, in its order; another command than the recorded one fails the test."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    at = iter(kept)

    def run(argv: Sequence[str], extra: Mapping[str, str], timeout_s: float) -> Answer:
        del extra, timeout_s
        one = next(at, None)
        assert one is not None, f"the recording {path.name} has no answer for {argv}"
        assert _still(argv) == one["argv"], f"recorded in {path.name}: {one['argv']}"
        mark = next((found[0] for word in argv if (found := _MARK.search(word))), "@MARK")
        return Answer(one["code"], one["out"].replace("@MARK", mark), one["err"])

    return run
