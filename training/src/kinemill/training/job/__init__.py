"""The reference job: a small real policy that learns actions from frames and joint state, and survives faults.

`config` says what to run, `data` feeds it, `policy` is the network, `loop` is one rank, `evaluate` judges it. Start
from `loop.run_rank` when you write your own: the attempt, checkpoint and evidence parts stay, policy and data change.
"""

from __future__ import annotations

from kinemill.training.job.config import JobConfig, load_config

__all__ = ["JobConfig", "load_config"]
