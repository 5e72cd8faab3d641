"""What is measured of an episode while it is converted, and after it was read back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kinemill.contracts import Receipt
from kinemill.pipelines.adapters.base import Finding

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Converted", "PictureMeter", "TopicMeasure", "measure_state"]


@dataclass(frozen=True, slots=True)
class TopicMeasure:
    """One topic of a converted episode."""

    topic: str
    messages: int
    t_first_ns: int = 0
    t_last_ns: int = 0
    repeated_stamps: int = 0
    backward_steps: int = 0
    max_gap_ns: int = 0
    not_finite: int = 0
    """Rows with NaN or infinity in any column."""
    first_bad_row: int = -1
    largest: float = 0.0
    """Largest absolute finite value."""
    largest_rad: float = 0.0
    """The same over columns in rad."""
    constant_columns: int = 0
    frozen: int = 0
    """Pictures equal to the one before."""
    mean_rgb: tuple[float, ...] = ()
    quaternion_error: float = 0.0
    """Largest distance of a quaternion's norm from 1."""
    psnr_db: float | None = None
    """Of pictures read back from the finished file against what was written; the lowest of the samples."""
    undecodable: int = 0
    """Passed-through pictures of the finished file that do not decode, or only with damage."""


@dataclass(frozen=True, slots=True)
class Converted:
    """One episode after conversion: its file, its receipt, its measures; or why there is none."""

    index: int
    key: str
    """The episode within its recording."""
    episode_id: str
    file: str = ""
    """Name in the work folder; empty where conversion failed."""
    receipt: Receipt | None = None
    robot: str = ""
    task: str = ""
    instruction: str = ""
    passthrough: bool = False
    """Packets were stored as they came."""
    topics: tuple[TopicMeasure, ...] = ()
    missing: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def measure_state(
    topic: str, *, t_ns: NDArray[Any], values: NDArray[Any], units: str, quaternion_error: float = 0.0
) -> TopicMeasure:
    """Measures of a state topic, (n,) int64 and (n, d) float64."""
    import numpy as np

    steps = np.diff(t_ns)
    finite = np.isfinite(values)
    bad = np.flatnonzero(~finite.all(axis=1))
    kept = np.where(finite, values, 0.0)
    words = units.split(",")
    radians = [i for i in range(values.shape[1]) if words[i if len(words) > 1 else 0] == "rad"]
    return TopicMeasure(
        topic=topic,
        messages=len(t_ns),
        t_first_ns=int(t_ns.min(initial=2**62)) if len(t_ns) else 0,
        t_last_ns=int(t_ns.max(initial=-(2**62))) if len(t_ns) else 0,
        repeated_stamps=int((steps == 0).sum()),
        backward_steps=int((steps < 0).sum()),
        max_gap_ns=int(steps.max(initial=0)),
        not_finite=len(bad),
        first_bad_row=int(bad[0]) if len(bad) else -1,
        largest=float(np.abs(kept).max(initial=0.0)),
        largest_rad=float(np.abs(kept[:, radians]).max(initial=0.0)) if radians else 0.0,
        constant_columns=int((np.ptp(kept, axis=0) == 0).sum()) if len(t_ns) > 1 else 0,
        quaternion_error=quaternion_error,
    )


class PictureMeter:
    """Measures of one camera, picture by picture, in bounded memory."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._count = self._frozen = self._repeated = self._backward = 0
        self._first = self._last = self._gap = 0
        self._before: bytes | None = None
        self._sum = [0.0, 0.0, 0.0]
        self._summed = 0

    @property
    def count(self) -> int:
        """Pictures so far."""
        return self._count

    def add(self, t_ns: int, image: NDArray[Any] | None, packet: bytes | None) -> None:
        """One more picture, decoded or as a packet."""
        import hashlib

        if self._count:
            step = t_ns - self._last
            self._repeated += step == 0
            self._backward += step < 0
            self._gap = max(self._gap, step)
        else:
            self._first = t_ns
        self._last = t_ns
        self._count += 1
        data = image.tobytes() if image is not None else packet or b""
        digest = hashlib.blake2b(data, digest_size=8).digest()
        self._frozen += digest == self._before
        self._before = digest
        if image is not None and self._count % 10 == 1:
            mean = image[::4, ::4].reshape(-1, 3).mean(axis=0)
            self._sum = [a + float(b) for a, b in zip(self._sum, mean, strict=True)]
            self._summed += 1

    def result(self, psnr_db: float | None = None, undecodable: int = 0) -> TopicMeasure:
        """What was measured."""
        return TopicMeasure(
            topic=self._topic,
            messages=self._count,
            t_first_ns=self._first,
            t_last_ns=self._last,
            repeated_stamps=self._repeated,
            backward_steps=self._backward,
            max_gap_ns=self._gap,
            frozen=self._frozen,
            mean_rgb=tuple(round(s / self._summed, 2) for s in self._sum) if self._summed else (),
            psnr_db=None if psnr_db is None or not math.isfinite(psnr_db) else round(psnr_db, 2),
            undecodable=undecodable,
        )
