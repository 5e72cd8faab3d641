"""What every peer's process runs: commands as JSON lines in, what they cost as JSON lines out."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from frame import _PssPeak, cpu_seconds


def serve(commands: dict[str, Callable[..., Any]]) -> None:
    """Answer until stdin ends: a command gets the request's other fields, its result goes back with what it cost."""
    warnings.filterwarnings("ignore")
    out = sys.stdout
    sys.stdout = sys.stderr  # libraries print
    for line in sys.stdin:
        request = json.loads(line)
        command = commands[request.pop("do")]
        if request.pop("pss", False):
            with _PssPeak() as peak:
                result = command(**request)
            answer = {"pss_bytes": peak.bytes, "cpu_s": 0.0, "wall_s": 0.0, "result": result}
        else:
            cpu, start = cpu_seconds(), time.perf_counter()
            result = command(**request)
            answer = {"cpu_s": cpu_seconds() - cpu, "wall_s": time.perf_counter() - start, "result": result}
        out.write(json.dumps(answer) + "\n")
        out.flush()
