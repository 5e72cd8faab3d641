"""`Clips`: contiguous stretches of video and state for world models, starting on GOP boundaries where they may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from kinemill.errors import UsageError
from kinemill.loaders.loading import LoadedDataset
from kinemill.loaders.manifest import Manifest
from kinemill.loaders.options import Options
from kinemill.loaders.windows import Window, WindowLike, parse_windows, steps

__all__ = ["Clips"]

ALIGN = ("gop", "any")


@dataclass(frozen=True, slots=True)
class _Starts:
    """Clip starts per episode: every `hop` frames, so that a whole clip fits; or one padded clip of a short episode."""

    span: int
    hop: int
    short: str

    def __call__(
        self, frames: npt.NDArray[Any], fps: npt.NDArray[Any], duration_ns: npt.NDArray[Any]
    ) -> npt.NDArray[np.int64]:
        have = frames.astype(np.int64)
        fits = np.where(have >= self.span, 1 + (have - self.span) // self.hop, 0)
        return np.where((fits == 0) & (have > 0), 1, fits) if self.short == "pad" else fits


class Clips(LoadedDataset):
    """Clips of `frames` frames of some cameras, and what else happened meanwhile.

    A random start decodes half a GOP that nobody asked for, about as much as the clip itself at GOP 120. With
    `align="gop"` starts lie on multiples of the rendition's GOP: twice the clips per CPU second.

    Example:
        >>> clips = Clips(manifest, ["/cam/front"], frames=64, gop=120, also={"/action": seconds(...)})
    """

    def __init__(
        self,
        manifest: Manifest | Sequence[Manifest],
        cameras: Sequence[str],
        *,
        frames: int,
        stride: int = 1,
        align: str = "gop",
        gop: int | None = None,
        hop: int | None = None,
        short: str = "skip",
        also: Mapping[str, WindowLike] | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Describe the clips; nothing of an episode is read.

        Args:
            manifest: One, or several for a mixture.
            cameras: Keys of the cameras.
            frames: Of a clip.
            stride: Every how many recorded frames is one of the clip.
            align: `gop`: starts are multiples of the GOP; `any`: every `hop` frames.
            gop: Frames per GOP of the rendition; default by profile: 120 for `world`, 5 for `vla`.
            hop: Frames between starts with `any`; default 1.
            short: Episodes shorter than a clip: `skip` them, or `pad` one clip at the end.
            also: Other windows, anchored at the clip's first frame.
            options: What both data sets take: store, where, weights, resize, normalise, ...; see `Options`.

        Raises:
            UsageError: Settings that contradict each other, or no GOP known.
        """
        if not cameras or frames < 1 or stride < 1:
            raise UsageError("clips need at least one camera, one frame, and a stride of 1 or more")
        if align not in ALIGN or short not in ("skip", "pad"):
            raise UsageError(f"align {align!r} is one of {', '.join(ALIGN)}; short {short!r} is skip or pad")
        if (hop is not None and align == "gop") or (hop is not None and hop < 1):
            raise UsageError("hop goes with align='any' and is 1 or more")
        sources = [manifest] if isinstance(manifest, Manifest) else list(manifest)
        self._hop = _gop_of(sources, gop) if align == "gop" else hop or 1
        windows: dict[str, Window] = {key: steps(range(0, frames * stride, stride)) for key in cameras}
        if also:
            windows.update(parse_windows(also))
        super().__init__(sources, windows, _Starts((frames - 1) * stride + 1, self._hop, short), **options)

    def step_of(self, turn: int) -> int:
        """The clip's first frame."""
        return turn * self._hop


def _gop_of(sources: Sequence[Manifest], told: int | None) -> int:
    if told is not None:
        if told < 1:
            raise UsageError(f"gop {told}: 1 or more")
        return told
    from kinemill.episode import PROFILES

    profiles = {source.row(0).profile for source in sources if len(source)}
    known = {PROFILES[name].gop_frames for name in profiles if name in PROFILES}
    if not profiles:
        return 1
    if len(known) != 1 or not profiles <= set(PROFILES):
        raise UsageError(f"align='gop': say gop=, the frames per GOP of the profiles {', '.join(sorted(profiles))}")
    return known.pop()
