"""Ours on the common recording, the bare decoder's bound on the same packets, and the stock MCAP reader."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import content as c
import numpy as np
from serve import serve

CAMS = [f"/cam/{i}" for i in range(c.CAMERAS)]
RENDITIONS = {"vla": ("vla", {}), "gop2": ("vla", {"gop_frames": 2}), "world": ("world", {})}


def build(root: Path, episodes: int, seconds: int, *kinds: str) -> None:
    """Renditions (default: all) of all episodes into a folder store, a manifest of each, and a stock MCAP of `vla`."""
    from kinemill.contracts import TopicKind
    from kinemill.episode import EpisodeWriter, Layout, TopicSpec, profile_of, publish
    from kinemill.store.files import FileStore
    from support.loaders import manifest_of

    root.mkdir(parents=True, exist_ok=True)
    store = FileStore(root / "bucket")
    names = [f"j{i}" for i in range(c.JOINTS)]
    specs = [TopicSpec(t, rate_hz=c.FPS, width=c.WIDTH, height=c.HEIGHT) for t in CAMS]
    specs.append(
        TopicSpec(
            "/state", TopicKind.STATE, rate_hz=c.HZ, names=tuple(names), fields=("position", "velocity", "effort")
        )
    )
    specs.append(TopicSpec("/action", TopicKind.STATE, rate_hz=c.HZ, names=tuple(names)))
    told = {}
    wanted = {name: RENDITIONS[name] for name in kinds or RENDITIONS}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in wanted}
    for episode in range(episodes):
        paths = {name: root / f"{name}-{episode}.mcap" for name in wanted}
        writers = {}
        with contextlib.ExitStack() as stack:  # all renditions at once: a frame takes longer to make than to encode
            for name, (base, overrides) in wanted.items():
                writers[name] = stack.enter_context(
                    EpisodeWriter(
                        paths[name],
                        episode_id=uuid.UUID(int=(7 << 76) | (2 << 62) | episode),
                        profile=profile_of(base, **overrides),
                        topics=specs,
                    )
                )
            row = 0
            for step in range(seconds * c.FPS):
                t_ns = round(step * 1e9 / c.FPS)
                n = round((step + 1) * c.HZ / c.FPS) - row
                t_s = (row + np.arange(n)) / c.HZ
                t_rows = np.round(t_s * 1e9).astype(np.int64)
                row += n
                images = [c.frame(episode, i, step) for i in range(len(CAMS))]
                for writer in writers.values():
                    writer.rows("/state", t_rows, c.state(t_s))
                    writer.rows("/action", t_rows, c.action(t_s))
                    for topic, image in zip(CAMS, images, strict=True):
                        writer.frame(topic, t_ns, image)
        stock(paths["vla"], root / f"stock-{episode}.mcap")
        for name, writer in writers.items():
            receipt = writer.receipt
            assert receipt is not None
            told[publish(store, paths[name], receipt).key] = name
            paths[name].unlink()
            topics, layout = Layout.from_receipt(receipt).columns()
            rows[name].append(
                {
                    "episode_id": uuid.UUID(receipt.episode_id).bytes,
                    "profile": receipt.profile,
                    "sha256": bytes.fromhex(receipt.sha256),
                    "size_bytes": receipt.size_bytes,
                    "vendor": "bench",
                    "robot": "bench",
                    "task": "bench",
                    "instruction": "bench",
                    "split": "train",
                    "t_first_ns": receipt.t_first_ns,
                    "duration_ns": receipt.t_last_ns - receipt.t_first_ns,
                    "frames": seconds * c.FPS,
                    "fps": float(c.FPS),
                    "weight": 1.0,
                    "topics": topics,
                    "layout": layout,
                }
            )
    for name, some in rows.items():
        manifest_of(root / f"{name}.arrow", some)
        manifest_of(root / f"{name}-sidecar.arrow", some, sidecar=True)
    (root / "renditions.json").write_text(json.dumps(told))


def stock(source: Path, target: Path) -> None:
    """The same messages through the stock writer: default chunks, all topics mixed by time."""
    from mcap.reader import make_reader
    from mcap.writer import Writer

    with source.open("rb") as file, target.open("wb") as out:
        reader = make_reader(file)
        writer = Writer(out)
        writer.start()
        schemas: dict[int, int] = {}
        channels: dict[int, int] = {}
        for schema, channel, message in reader.iter_messages():
            assert schema is not None
            if schema.id not in schemas:
                schemas[schema.id] = writer.register_schema(schema.name, schema.encoding, schema.data)
            if channel.id not in channels:
                channels[channel.id] = writer.register_channel(
                    channel.topic, channel.message_encoding, schemas[schema.id], channel.metadata
                )
            writer.add_message(
                channels[channel.id], message.log_time, message.data, message.publish_time, message.sequence
            )
        writer.finish()


def dataset(root: Path, kind: str, **options: Any) -> Any:
    """Random VLA samples of a rendition."""
    from kinemill.loaders import Manifest, ReadSettings, SparseWindows, steps
    from kinemill.loaders.transforms import Transform  # noqa: F401 - the import cost belongs to set-up

    windows = {**{t: steps(0) for t in CAMS}, "/action": steps(range(c.CHUNK))}
    options.setdefault("read", ReadSettings(prefetch=0, cache_mib=0))
    options.setdefault("store", (root / "bucket").as_uri())
    return SparseWindows(Manifest.from_file(root / f"{kind}.arrow"), windows, text=False, **options)


def clip_set(root: Path, frames: int) -> Any:
    from kinemill.loaders import Clips, Manifest, ReadSettings

    return Clips(
        Manifest.from_file(root / "world.arrow"),
        CAMS,
        frames=frames,
        align="any",
        store=(root / "bucket").as_uri(),
        read=ReadSettings(prefetch=0, cache_mib=0),
        text=False,
    )


def main(folder: str) -> None:
    """Answer commands."""
    import torch

    root = Path(folder)
    made: dict[str, Any] = {}
    torch.set_num_threads(1)

    def ours(kind: str = "vla", pixels: str = "rgb") -> Any:
        name = f"{kind} {pixels}"
        if name not in made:
            made[name] = dataset(root, kind, pixels=pixels)
        return made[name]

    def vla(n: int, seed: int, batch: int, kind: str = "vla", pixels: str = "rgb") -> int:
        data = ours(kind, pixels)
        picks = np.random.default_rng(seed).integers(0, len(data), n).tolist()
        for at in range(0, n, batch):
            assert data.read(picks[at : at + batch]).batch["valid"].all()
        return n

    def bound(n: int, seed: int, batch: int, kind: str = "vla", pixels: str = "rgb") -> int:
        """The same samples' packets through one warm decoder a camera: decode, convert, copy to warm memory."""
        return run_bound(packets_of(ours(kind), n, seed), batch, pixels)

    def prepare(n: int, seed: int, batch: int, kind: str = "vla", pixels: str = "rgb") -> int:
        packets_of(ours(kind), n, seed)
        return batch

    packets: dict[tuple[int, int, int], list[list[tuple[list[bytes], int]]]] = {}

    def packets_of(data: Any, n: int, seed: int) -> Any:
        key = (id(data), n, seed)
        if key not in packets:
            picks = np.random.default_rng(seed).integers(0, len(data), n).tolist()
            packets[key] = [sample_packets(data, pick) for pick in picks]
        return packets[key]

    decoders: list[Any] = []
    room: dict[tuple[int, ...], np.ndarray] = {}

    def output(*shape: int) -> np.ndarray:
        """Memory that was written before: a bound pays for decoding, not for fresh pages."""
        if shape not in room:
            room[shape] = np.zeros(shape, np.uint8)
        return room[shape]

    def run_bound(samples: Any, batch: int, pixels: str) -> int:
        import av
        from av.video.reformatter import VideoReformatter

        if not decoders:
            for _ in range(c.CAMERAS):
                context = av.VideoCodecContext.create("h264", "r")
                context.thread_count = 1
                context.options = {"flags": "+low_delay"}
                decoders.append(context)
            decoders.append(VideoReformatter())
        convert = decoders[-1]
        tall = c.HEIGHT * 3 // 2
        shape = (c.CAMERAS, c.HEIGHT, c.WIDTH, 3) if pixels == "rgb" else (c.CAMERAS, tall, c.WIDTH)
        for at in range(0, len(samples), batch):
            out = output(batch, *shape)
            for b, sample in enumerate(samples[at : at + batch]):
                for i, (chain, wanted) in enumerate(sample):
                    decoders[i].flush_buffers()
                    for k, packet in enumerate(chain):
                        frame = decoders[i].decode(av.Packet(packet))[0]
                        if k == wanted:
                            if pixels == "rgb":
                                plane = convert.reformat(frame, format="rgb24", threads=1).planes[0]
                                out[b, i] = (
                                    np.frombuffer(plane, np.uint8)
                                    .reshape(c.HEIGHT, -1)[:, : 3 * c.WIDTH]
                                    .reshape(c.HEIGHT, c.WIDTH, 3)
                                )
                            else:
                                lines = [np.frombuffer(p, np.uint8).reshape(-1, p.line_size) for p in frame.planes]
                                out[b, i, : c.HEIGHT] = lines[0][: c.HEIGHT, : c.WIDTH]
                                half = out[b, i, c.HEIGHT :].reshape(2, c.HEIGHT // 2, c.WIDTH // 2)
                                half[0] = lines[1][:, : c.WIDTH // 2]
                                half[1] = lines[2][:, : c.WIDTH // 2]
        return len(samples)

    def clips(n: int, seed: int, frames: int, per_episode: int) -> int:
        if "clips" not in made:
            made["clips"] = clip_set(root, frames)
        data = made["clips"]
        picks = np.random.default_rng(seed).integers(0, len(data), n).tolist()
        for pick in picks:
            assert data.read([pick]).batch["valid"].all()
        return n

    clip_packets: dict[int, Any] = {}

    def clip_prepare(n: int, seed: int, frames: int, per_episode: int) -> int:
        if "clips" not in made:
            made["clips"] = clip_set(root, frames)
        picks = np.random.default_rng(seed).integers(0, len(made["clips"]), n).tolist()
        clip_packets[seed] = [clip_chain(made["clips"], pick, frames) for pick in picks]
        return n

    def clip_bound(n: int, seed: int, frames: int, per_episode: int) -> int:
        import av
        from av.video.reformatter import VideoReformatter

        convert = VideoReformatter()
        for clip in clip_packets[seed]:
            out = output(c.CAMERAS, frames, c.HEIGHT, c.WIDTH, 3)
            for i, (chain, first) in enumerate(clip):
                context = av.VideoCodecContext.create("h264", "r")
                context.thread_count = 1
                context.options = {"flags": "+low_delay"}
                for k, packet in enumerate(chain):
                    frame = context.decode(av.Packet(packet))[0]
                    if k >= first:
                        plane = convert.reformat(frame, format="rgb24", threads=1).planes[0]
                        out[i, k - first] = np.frombuffer(plane, np.uint8).reshape(c.HEIGHT, c.WIDTH, 3)
        return n

    def workers(n: int, seed: int, batch: int) -> int:
        from torch.utils.data import DataLoader

        from kinemill.loaders import collate

        data = ours()
        picks = np.random.default_rng(seed).integers(0, len(data), n).tolist()
        loader = DataLoader(
            data, batch_size=batch, sampler=picks, num_workers=2, multiprocessing_context="fork", collate_fn=collate
        )
        return sum(len(b["/action"]) for b in loader)

    def epochs(batch: int, steps: int) -> list[int]:
        """Memory of this process's own after each step of a training loop over several epochs; it does nothing else.

        PSS would not do: its share of the libraries' pages moves with whoever else on the machine maps them.
        """
        loader = dataset(root, "vla").loader(batch)
        seen: list[int] = []
        while len(seen) < steps:
            for held in loader:
                assert held["valid"].all()
                seen.append(own_bytes())
                if len(seen) == steps:
                    break
        return seen

    stock_readers: dict[int, Any] = {}

    def stock_vla(n: int, seed: int, batch: int) -> int:
        """As a careful user of the stock reader and decoder: summary read once, CRCs checked, seek to the keyframe."""
        from mcap.reader import make_reader

        data = ours()
        picks = np.random.default_rng(seed).integers(0, len(data), n).tolist()
        for at in range(0, n, batch):
            some = picks[at : at + batch]
            out = np.empty((len(some), c.CAMERAS, c.HEIGHT, c.WIDTH, 3), np.uint8)
            for b, pick in enumerate(some):
                job = data.locate(pick)
                if job.row not in stock_readers:
                    stock_readers[job.row] = make_reader(
                        (root / f"stock-{job.row}.mcap").open("rb"), validate_crcs=True
                    )
                stock_sample(stock_readers[job.row], job.step, out[b])
        return n

    def stock_sample(reader: Any, step: int, out: np.ndarray) -> None:
        import av
        from mcap_ros2.decoder import DecoderFactory

        from kinemill.episode.proto import video_bytes

        gop = step // 5 * 5
        t0, t1 = round(gop * 1e9 / c.FPS), round(step * 1e9 / c.FPS)
        end = t1 + c.CHUNK * 5_000_000
        chains: dict[str, list[bytes]] = {t: [] for t in CAMS}
        rows = []
        factory = stock_readers.setdefault(-1, DecoderFactory())
        for schema, channel, message in reader.iter_messages(topics=[*CAMS, "/action"], start_time=t0, end_time=end):
            if channel.topic == "/action":
                if message.log_time >= t1:
                    rows.append(factory.decoder_for(channel.message_encoding, schema)(message.data).position)
            elif message.log_time <= t1:
                chains[channel.topic].append(bytes(video_bytes(memoryview(message.data))[0]))
        for i, topic in enumerate(CAMS):
            context = av.VideoCodecContext.create("h264", "r")
            context.thread_count = 1
            context.options = {"flags": "+low_delay"}
            frame = None
            for packet in chains[topic]:
                frame = context.decode(av.Packet(packet))[0]
            assert frame is not None
            out[i] = frame.to_ndarray(format="rgb24")

    def quality(kind: str = "vla") -> float:
        data = ours(kind)
        found = []
        for step in (3, 40, 77):
            item = data[step]
            found += [c.psnr(item[t][0].numpy(), c.frame(0, i, step)) for i, t in enumerate(CAMS)]
        return float(np.mean(found))

    def cold(manifest: str, episodes: int) -> float:
        from kinemill.loaders import Manifest, ReadSettings, SparseWindows, steps

        start = time.process_time()
        data = SparseWindows(
            Manifest.from_file(manifest),
            {**{t: steps(0) for t in CAMS}, "/action": steps(range(c.CHUNK))},
            store=(root / "bucket").as_uri(),
            read=ReadSettings(prefetch=0, cache_mib=0),
        )
        _ = data[len(data) // 2]
        assert len(data.sources[0]) == episodes
        return time.process_time() - start

    serve(
        {
            "vla": vla,
            "bound": bound,
            "prepare": prepare,
            "clips": clips,
            "clip_bound": clip_bound,
            "clip_prepare": clip_prepare,
            "workers": workers,
            "epochs": epochs,
            "stock": stock_vla,
            "quality": quality,
            "cold": cold,
        }
    )


def own_bytes() -> int:
    """Anonymous and shared-memory pages of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def sample_packets(data: Any, pick: int) -> list[tuple[list[bytes], int]]:
    """(packets from the keyframe on, which one is wanted) of each camera, through the reader's own halves."""
    return _chains(data, pick, 1)


def clip_chain(data: Any, pick: int, frames: int) -> list[tuple[list[bytes], int]]:
    """As above for a clip."""
    return _chains(data, pick, frames)


def _chains(data: Any, pick: int, frames: int) -> list[tuple[list[bytes], int]]:
    from kinemill.episode import DecoderPool, EpisodeReader, Layout, Window
    from kinemill.episode.decode import DECODERS

    job = data.locate(pick)
    row = data.row(job.source, job.row)
    taken: list[tuple[list[bytes], int]] = []

    class Spy:
        def __init__(self, *_: Any) -> None:
            pass

        def reset(self) -> None:
            pass

        def decode(self, packets: Any, wanted: Any, out: Any) -> None:
            taken.append(([bytes(p) for p in packets], wanted[0]))

    DECODERS["spy"] = Spy  # type: ignore[assignment]  # a decoder that only listens
    reader = EpisodeReader(
        data.engine.store, row.key, Layout.from_columns(row.topics, row.layout), decoder="spy", pool=DecoderPool()
    )
    reader.read([Window.steps(t, job.step, frames) for t in CAMS])
    merged: list[tuple[list[bytes], int]] = []
    per_camera = len(taken) // len(CAMS)
    for i in range(len(CAMS)):
        parts = taken[i * per_camera : (i + 1) * per_camera]
        merged.append(([p for chain, _ in parts for p in chain], parts[0][1]))
    return merged


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build", target, episodes, seconds, *kinds]:
            build(Path(target), int(episodes), int(seconds), *kinds)
        case [source]:
            main(source)
