"""The test bed in one run: a cluster comes up, runs a job, loses a node, requeues the job, and is gone.

Run as `python -m kinemill.control.sandbox.smoke [IMAGE]`, or `make cluster-smoke`. Prints one line per stage; exit 1
where the whole took longer than its bound, images not counted.
"""

from __future__ import annotations

import os
import sys
import time

from kinemill.control.sandbox import anchor, faults, images
from kinemill.control.sandbox.cluster import Cluster
from kinemill.errors import KinemillError

__all__ = ["main"]

BOUND_S = 90.0


def _stage(name: str, since: float) -> float:
    now = time.monotonic()
    print(f"{name:34} {now - since:6.1f} s", flush=True)
    return now


def run(image: str) -> float:
    """One run; returns its seconds.

    Raises:
        KinemillError: A stage did not come to its end.
    """
    images.build(image, say=print)
    started = mark = time.monotonic()
    cluster = Cluster.up("ctl", ["n1", "n2"], image=image, name=f"s{os.getpid() % 10**6}", owned=True)
    try:
        mark = _stage(f"3 nodes up, Slurm {cluster.version()} idle", mark)
        first = cluster.submit("true", "--gres=gpu:8", "--nodes=2")
        anchor.until("job", lambda: cluster.job(first)["JobState"] == "COMPLETED", deadline_s=60, every_s=0.2)
        mark = _stage("job on both nodes", mark)
        second = cluster.submit('test "$SLURM_RESTART_COUNT" = 1 || sleep 600', "--gres=gpu:1", "--requeue")
        anchor.until("start", lambda: cluster.job(second)["JobState"] == "RUNNING", deadline_s=60, every_s=0.2)
        host = cluster.job(second)["BatchHost"]
        faults.cut(cluster.box, host)
        mark = _stage(f"second job started, {host} cut", mark)
        anchor.until("requeue", lambda: cluster.job(second)["JobState"] == "COMPLETED", deadline_s=180, every_s=0.2)
        found = cluster.job(second)
        mark = _stage(f"requeued, done on {found['BatchHost']}", mark)
    finally:
        cluster.down()
    _stage("all gone", mark)
    return time.monotonic() - started


def main(arguments: list[str]) -> int:
    """Entry."""
    try:
        taken = run(arguments[0] if arguments else "bookworm-slurm")
    except KinemillError as error:
        print(f"cluster-smoke: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{'in all':34} {taken:6.1f} s (bound {BOUND_S:.0f} s)")
    return 0 if taken <= BOUND_S else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
