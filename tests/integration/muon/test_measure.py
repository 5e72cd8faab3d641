"""Measuring on a cluster: both strategies are timed, and one threshold comes out on every rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from kinemill.training.muon.measure import Row, counts, threshold_of
from support.muon import Fleet
from support.muon_work import measured


def test_the_counts_double_up_to_all() -> None:
    assert counts(2) == [2]
    assert counts(6) == [2, 4, 6]
    assert counts(8) == [2, 4, 8]


def test_the_threshold_is_the_last_of_an_unbroken_row_of_wins() -> None:
    def rows(*pairs: tuple[int, float, float]) -> list[Row]:
        return [Row(*p) for p in pairs]

    assert threshold_of(rows((2, 1.0, 0.5), (4, 1.0, 0.8), (8, 1.0, 0.95))) == 4
    assert threshold_of(rows((2, 1.0, 0.95), (4, 1.0, 0.5))) == 0
    assert threshold_of(rows((2, 1.0, 0.5))) == 2


def test_all_ranks_measure_the_same_rows(four: Fleet) -> None:
    found = four.run(measured)

    assert all(f == found[0] for f in found)
    assert [row[0] for row in found[0]["rows"]] == [2]
    assert all(seconds > 0 for row in found[0]["rows"] for seconds in row[1:])
    assert found[0]["node_threshold"] in (0, 2)
    assert found[0]["fabric"] > 0
    assert "2 nodes of 2 ranks" in found[0]["topology"]


def test_the_command_measures_under_torchrun() -> None:
    # Two pretend nodes of one rank each on this machine, each told its node's name.
    script = (
        "import os; os.environ['KINEMILL_NODE_ID'] = 'node-' + os.environ['RANK']; os.environ.pop('LOCAL_WORLD_SIZE')"
    )
    program = f"{script}; from kinemill.cli import main; import sys; sys.argv = ['kinemill', *sys.argv[1:]]; main()"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "KINEMILL_CONFIG_DIR": "/nonexistent"}
    command = ["train", "strategy", "--measure", "--shape", "32x64x4", "--bucket-mb", "0.01", "--json"]

    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]

    done = subprocess.run(
        [*launcher, sys.executable, "-c", program, *command],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert answer["node_threshold"] in (0, 2)
    assert answer["rows"][0]["nodes"] == 2
