"""Frames of episodes as small JPEGs for the report, and what our video costs against JPEG at the same quality."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Images = NDArray[np.uint8]

__all__ = ["Comparison", "against_jpeg", "compare_raw", "data_uri", "file_pieces", "first_frames", "read_frames"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One camera of one episode of which the vendor delivered raw pictures."""

    topic: str
    frames: int
    psnr_db: float
    """Of our frames against the raw ones, over all pixels."""
    video_bytes: int
    jpeg_bytes: float
    """At the same PSNR, between the two nearest integer qualities."""
    jpeg_quality: float
    raw_bytes: int

    @property
    def ratio(self) -> float:
        """JPEG bytes for one byte of ours."""
        return self.jpeg_bytes / self.video_bytes


def data_uri(image: Images, *, quality: int = 88) -> str:
    """(H, W, 3) RGB as a JPEG inside the page."""
    return "data:image/jpeg;base64," + base64.b64encode(_jpeg(image, quality)).decode()


def read_frames(path: Path, topic: str, count: int) -> Images:
    """`count` frames of a camera, evenly spread, (count, H, W, 3) RGB."""
    import numpy as np

    from kinemill.episode import EpisodeReader, Window
    from kinemill.store.files import FileStore

    reader = EpisodeReader.open(FileStore(path.parent), path.name)
    group = next(g for g in reader.layout.groups if any(t.topic == topic for t in g.topics))
    first, last = int(group.t_first_ns[0]), int(group.t_last_ns[-1])
    wanted = np.linspace(first, last, count).astype(np.int64)
    images: Images = reader.read([Window.at(topic, [int(t) for t in wanted], tolerance_ns=10**9)])[topic][1]
    return images


def file_pieces(path: Path) -> tuple[list[tuple[str, int, int]], int]:
    """(group, start, length) of every chunk of a file, and its size, from its own index."""
    from kinemill.episode import EpisodeReader
    from kinemill.store.files import FileStore

    reader = EpisodeReader.open(FileStore(path.parent), path.name)
    found = [
        (group.name, int(start), int(length))
        for group in reader.layout.groups
        for start, length in zip(group.offset, group.length, strict=True)
    ]
    return sorted(found, key=lambda p: p[1]), path.stat().st_size


def first_frames(path: Path, chunks: int) -> list[tuple[str, int, int, bool]]:
    """(topic, chunk, bytes, IDR?) of the video messages of the first chunks, read with the stock MCAP library."""
    from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
    from mcap.records import Channel, Chunk, Message
    from mcap.stream_reader import StreamReader, breakup_chunk

    topics: dict[int, str] = {}  # of video; state is CDR
    found: list[tuple[str, int, int, bool]] = []
    seen = 0
    with path.open("rb") as file:
        for record in StreamReader(file, emit_chunks=True).records:
            if isinstance(record, Channel) and record.message_encoding == "protobuf":
                topics[record.id] = record.topic
            if not isinstance(record, Chunk):
                continue
            messages = [r for r in breakup_chunk(record) if isinstance(r, Message) and r.channel_id in topics]
            for message in messages:
                video = CompressedVideo.FromString(message.data)
                found.append((topics[message.channel_id], seen, len(message.data), _has_idr(video.data)))
            seen += 1
            if seen == chunks:
                return found
    return found


def compare_raw(hdf5: Path, episode: Path) -> list[Comparison]:
    """Both cameras of an episode against the raw pictures in the HDF5 file that it came from."""
    import h5py
    import numpy as np

    from kinemill.episode import EpisodeReader, Window
    from kinemill.store.files import FileStore

    sizes: dict[str, int] = {}
    for topic, _, length, _ in first_frames(episode, 1 << 30):
        sizes[topic] = sizes.get(topic, 0) + length
    reader = EpisodeReader.open(FileStore(episode.parent), episode.name)
    found = []
    with h5py.File(hdf5) as file:
        for camera, topic in (("cam_high", "/cam/scene"), ("cam_wrist", "/cam/wrist")):
            raw = np.ascontiguousarray(file["observations/images"][camera][:][..., ::-1])  # stored blue first
            ours = reader.read([Window.steps(topic, 0, len(raw))])[topic][1]
            found.append(against_jpeg(raw, ours, topic, sizes[topic]))
    return found


def against_jpeg(raw: Images, ours: Images, topic: str, video_bytes: int) -> Comparison:
    """What JPEG (4:2:0, as cameras write it) needs to be as close to `raw` as `ours` is.

    Args:
        raw: (n, H, W, 3) RGB as delivered.
        ours: The same frames out of the episode.
        topic: Names the camera.
        video_bytes: What those frames take in the episode.
    """
    target = _psnr(raw, ours)
    low, high = 1, 97
    while high - low > 1:  # PSNR grows with the quality
        middle = (low + high) // 2
        if _psnr(raw, _through_jpeg(raw, middle)[0]) < target:
            low = middle
        else:
            high = middle
    (below, below_bytes), (above, above_bytes) = (_through_jpeg(raw, q) for q in (low, high))
    psnr_below, psnr_above = _psnr(raw, below), _psnr(raw, above)
    share = min(1.0, max(0.0, (target - psnr_below) / max(psnr_above - psnr_below, 1e-9)))
    return Comparison(
        topic=topic,
        frames=len(raw),
        psnr_db=target,
        video_bytes=video_bytes,
        jpeg_bytes=below_bytes + share * (above_bytes - below_bytes),
        jpeg_quality=low + share,
        raw_bytes=raw.nbytes,
    )


def _psnr(a: Images, b: Images) -> float:
    import numpy as np

    mse = float(np.mean((a.astype(np.float32) - b.astype(np.float32)) ** 2))
    return 10 * float(np.log10(255.0**2 / max(mse, 1e-12)))


def _jpeg(image: Any, quality: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(image).save(out, "JPEG", quality=quality, subsampling=2, optimize=True)
    return out.getvalue()


def _through_jpeg(images: Images, quality: int) -> tuple[Images, int]:
    import numpy as np
    from PIL import Image

    files = [_jpeg(image, quality) for image in images]
    return np.stack([np.asarray(Image.open(io.BytesIO(f)).convert("RGB")) for f in files]), sum(map(len, files))


def _has_idr(annexb: bytes) -> bool:
    """Whether an access unit holds a NAL unit of type 5."""
    at = annexb.find(b"\0\0\1")
    while at >= 0 and at + 3 < len(annexb):
        if annexb[at + 3] & 0x1F == 5:
            return True
        at = annexb.find(b"\0\0\1", at + 3)
    return False
