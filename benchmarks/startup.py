"""What it costs to start a command, beside an interpreter that does nothing.

The prolog starts `kinemill-node` before every job, so its start-up is part of the job's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from frame import Bench, run_command

BIN = Path(sys.executable).parent
BARE = [sys.executable, "-c", "pass"]


def main() -> None:
    """Measure `--help` of both entries."""
    bench = Bench("startup", __doc__)
    against = "python -c pass, same rounds"
    bench.declare("kinemill_help_over_python", unit="CPU s", better="lower", bar=0.10, against=against)
    bench.declare("kinemill_node_help_over_python", unit="CPU s", better="lower", bar=0.07, against=against)
    rounds = bench.interleave(
        {
            "python": lambda: run_command(BARE),
            "kinemill": lambda: run_command([str(BIN / "kinemill"), "--help"]),
            "kinemill-node": lambda: run_command([str(BIN / "kinemill-node"), "--help"]),
        },
        repeats=bench.pick(quick=15, full=60),
    )
    bench.record("kinemill_help_over_python", rounds.difference("kinemill", "python"))
    bench.record("kinemill_node_help_over_python", rounds.difference("kinemill-node", "python"))
    bench.finish()


if __name__ == "__main__":
    main()
