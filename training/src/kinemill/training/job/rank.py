"""`python -m kinemill.training.job.rank CONFIG`: one rank of the reference job; the launcher starts it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> int:
    """Read the job file and run this rank."""
    import torch

    from kinemill.logs import logs_from_settings
    from kinemill.training.job.config import load_config
    from kinemill.training.job.loop import run_rank
    from kinemill.training.job.windows import open_windows

    logs_from_settings()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return run_rank(load_config(Path(sys.argv[1])), open_windows)


if __name__ == "__main__":
    sys.exit(main())
