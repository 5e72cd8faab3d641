"""Samples per CPU second against LeRobot, Mosaic MDS, stock MCAP and the bare decoder, on the same recording.

Peers run in environments of their own, made by benchmarks/peers/*.sh; a full run fails without them, a quick run
(`--quick`) leaves them out and says so.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from frame import Bench, Rounds, Sample

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinemill/peers"
PEERS = Path(os.environ.get("KINEMILL_PEERS") or CACHE)
CLIP = 64
BATCH = 8
PATCHES = "peer outside its declared ranges: torch 2.13, torchcodec 0.12, Python 3.11 syntax (peers/patch_lerobot.py)"


class Peer:
    """A process that answers commands; see peers/serve.py."""

    def __init__(self, python: Path, script: str, *args: str) -> None:
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self._process = subprocess.Popen(
            [str(python), str(HERE / "peers" / script), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )

    def ask(self, do: str, **request: Any) -> Sample:
        """Run a command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r}: ended in the middle of '{do}'")
        told = json.loads(line)
        return Sample(told["cpu_s"], told["wall_s"], told.get("pss_bytes", 0), told["result"])

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate("", timeout=60)


def run(python: Path, script: str, *args: str) -> None:
    """Build a set; its chatter goes away."""
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        [str(python), str(HERE / "peers" / script), *args],
        check=True,
        env=clean | {"HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def built(target: Path, build: Callable[[Path], None]) -> Path:
    """Build once, completely or not at all."""
    if not target.exists():
        part = target.with_name(target.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        build(part)
        part.rename(target)
    return target


def folder_bytes(path: Path) -> int:
    """Of all files below, once."""
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def declare(bench: Bench) -> None:
    """Every figure of the table."""
    d = bench.declare
    d("vla_vs_bound", unit="x", better="higher", bar=0.9, against="bare decoder on the same packets")
    d(
        "vla_vs_stock_mcap",
        unit="x",
        better="higher",
        bar=1.3,
        against="stock reader (CRC on) and ROS 2 decoder, default-writer MCAP",
    )
    d("vla_vs_lerobot", unit="x", better="higher", bar=3.0, against=f"LeRobot 0.6.1 default (AV1); {PATCHES}")
    d("vla_vs_lerobot_h264", unit="x", better="higher", bar=1.85, against="LeRobot 0.6.1 h264")
    d("vla_vs_mds", unit="x", better="higher", bar=1.0, against="JPEG in MDS 0.13; ours GOP 2, YUV planes")
    d("mds_bytes", unit="x", better="lower", bar=1 / 3, against="our GOP 2 bytes over JPEG in MDS's")
    d("workers_vs_lerobot", unit="x", better="higher", bar=2.2, against="LeRobot default, DataLoader with 2 workers")
    d("workers_pss_vs_lerobot", unit="x", better="lower", bar=0.6, against="the same, peak PSS of all processes")
    d("clips_vs_bound", unit="x", better="higher", bar=0.95, against=f"bare decoder, {CLIP} frames x 4 cameras")
    d("clips_vs_lerobot", unit="x", better="higher", bar=4.2, against="LeRobot default, the same clips")
    d("clips_vs_mds", unit="x", better="higher", bar=2.1, against="JPEG in MDS, the same clips")
    d("requests_per_sample", unit="requests", better="lower", bar=2.0, against="two topic groups, at the server")
    d("sidecar_extra", unit="requests", better="lower", bar=1.0, against="an episode's first visit, at the server")
    d("bytes_over_window", unit="x", better="lower", bar=1.1, against="the window's chunks, at the server")
    d(
        "latency_30ms",
        unit="x",
        better="higher",
        bar=0.9,
        against="workers' time not spent waiting, over that without latency",
    )
    d("latency_30ms_wall", unit="x", better="higher", against="the same on the clock; a busy machine moves it")
    d(
        "open_us_per_episode",
        unit="us",
        better="lower",
        bar=10.0,
        against="constructor to first sample, 12 to 1 M episodes",
    )
    d("open_vs_lerobot", unit="x", better="higher", bar=60.0, against="LeRobot at 1,200 episodes, cached second open")
    d(
        "memory_growth",
        unit="%",
        better="lower",
        bar=5.0,
        against="highest own memory of the reading process after the first tenth",
    )


def main() -> None:
    """Measure."""
    bench = Bench("loader", __doc__)
    declare(bench)
    episodes, seconds = bench.pick(quick=(1, 4), full=(2, 20))
    with contextlib.ExitStack() as stack:
        temp = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kinemill-bench-")))
        data = temp if bench.quick else PEERS / f"data-{episodes}x{seconds}s"
        kinds = ("vla", "world") if bench.quick else ()  # GOP 2 is there to be compared with a peer
        ours_at = built(
            data / "own",
            lambda p: run(Path(sys.executable), "own_peer.py", "build", str(p), str(episodes), str(seconds), *kinds),
        )
        ours = Peer(Path(sys.executable), "own_peer.py", str(ours_at))
        stack.callback(ours.close)
        bench.say(f"luma PSNR: ours GOP 5 {ours.ask('quality').result:.1f} dB")
        if not bench.quick:
            bench.say(f"luma PSNR: ours GOP 2 {ours.ask('quality', kind='gop2').result:.1f} dB")
        peers = open_peers(bench, data, stack, episodes, seconds)
        vla(bench, ours, peers, ours_at, data)
        clips(bench, ours, peers, ours_at, seconds)
        if "lerobot" in peers:
            two_workers(bench, ours_at, data)
        cold_open(bench, ours, ours_at, temp, data if "lerobot" in peers else None)
        memory(bench, ours_at)
        over_the_wire(bench, ours_at)
    bench.finish()


def _build_lerobot(python: Path, codec: str, size: tuple[str, str], target: Path) -> None:
    run(python, "lerobot_peer.py", "build", str(target), codec, *size)


def open_peers(bench: Bench, data: Path, stack: contextlib.ExitStack, episodes: int, seconds: int) -> dict[str, Peer]:
    """The peers that there are; without one, its figures stay unmeasured and a full run fails."""
    found: dict[str, Peer] = {}
    size = (str(episodes), str(seconds))
    lerobot, mds = PEERS / "lerobot/bin/python", PEERS / "mds/bin/python"
    if bench.quick:
        for figure in (
            "vla_vs_lerobot",
            "vla_vs_lerobot_h264",
            "vla_vs_mds",
            "mds_bytes",
            "workers_vs_lerobot",
            "workers_pss_vs_lerobot",
            "clips_vs_lerobot",
            "clips_vs_mds",
            "open_vs_lerobot",
        ):
            bench.leave_out(figure, "peers are left out of a quick run")
        return found
    if (PEERS / "lerobot/done").exists():
        for name, codec in (("lerobot", "av1"), ("lerobot_h264", "h264")):
            build = functools.partial(_build_lerobot, lerobot, codec, size)
            at = built(data / f"lerobot-{codec}", build)
            found[name] = Peer(lerobot, "lerobot_peer.py", str(at))
    else:
        bench.say("no LeRobot: run benchmarks/peers/lerobot.sh")
    if (PEERS / "mds/done").exists():
        at = built(data / "mds", lambda p: run(mds, "mds_peer.py", "build", str(p), *size))
        found["mds"] = Peer(mds, "mds_peer.py", str(at))
    else:
        bench.say("no Mosaic Streaming: run benchmarks/peers/mds.sh")
    for name, peer in found.items():
        stack.callback(peer.close)
        bench.say(f"luma PSNR: {name} {peer.ask('quality').result:.1f} dB")
    return found


def _against_bound(
    bench: Bench, ours_at: Path, commands: tuple[str, str, str], work: dict[str, Any]
) -> tuple[list[float], float]:
    """Bound over ours in each round, and the bound's CPU seconds: the two lie close, so in several fresh processes.

    Where a process's buffers happen to lie moves one against the other by some percent, for as long as it lives.

    Args:
        bench: The run.
        ours_at: Our renditions.
        commands: Of the peer: what to prepare, ours, the bound.
        work: Their arguments.
    """
    prepare, ours, bound = commands
    ratios: list[float] = []
    spent: list[float] = []
    for _ in range(bench.pick(quick=1, full=3)):
        peer = Peer(Path(sys.executable), "own_peer.py", str(ours_at))
        try:
            peer.ask(prepare, **work)
            rounds = bench.interleave(
                {
                    "ours": functools.partial(peer.ask, ours, **work),
                    "bound": functools.partial(peer.ask, bound, **work),
                },
                repeats=7,
            )
        finally:
            peer.close()
        ratios += rounds.ratios("bound", "ours")
        spent += rounds.values("bound")
    return ratios, statistics.median(spent)


def vla(bench: Bench, ours: Peer, peers: dict[str, Peer], ours_at: Path, data: Path) -> None:
    """Random samples of one time step, four cameras and 50 actions."""
    n = bench.pick(quick=16, full=32)
    work = {"n": n, "seed": 1, "batch": BATCH}
    ratios, bound = _against_bound(bench, ours_at, ("prepare", "vla", "bound"), work)
    bench.record("vla_vs_bound", statistics.median(ratios))
    bodies: dict[str, Callable[[], object]] = {
        "ours": lambda: ours.ask("vla", **work),
        "stock": lambda: ours.ask("stock", **work),
    }
    if peers:
        bodies["ours_gop2_yuv"] = lambda: ours.ask("vla", **work, kind="gop2", pixels="yuv420")
    for name, peer in peers.items():
        bodies[name] = functools.partial(peer.ask, "vla", **work)
    rounds = bench.interleave(bodies, repeats=bench.pick(quick=3, full=7))
    bench.say(f"bound: {bound / n * 1e3:.1f} CPU ms a sample")
    for name in bodies:
        bench.say(f"{name}: {rounds.median(name) / n * 1e3:.1f} CPU ms a sample")
    bench.record("vla_vs_stock_mcap", rounds.ratio("stock", "ours"))
    for name in ("lerobot", "lerobot_h264"):
        if name in peers:
            bench.record(f"vla_vs_{name}", rounds.ratio(name, "ours"))
    if "mds" in peers:
        bench.record("vla_vs_mds", rounds.ratio("mds", "ours_gop2_yuv"))
        told = json.loads((ours_at / "renditions.json").read_text())
        gop2 = sum((ours_at / "bucket" / key).stat().st_size for key, kind in told.items() if kind == "gop2")
        bench.record("mds_bytes", gop2 / folder_bytes(data / "mds"))


def clips(bench: Bench, ours: Peer, peers: dict[str, Peer], ours_at: Path, seconds: int) -> None:
    """Contiguous clips from random starts, as the peers read them."""
    n = bench.pick(quick=1, full=2)
    work = {"n": n, "seed": 1, "frames": CLIP, "per_episode": seconds * 30}
    ratios, _ = _against_bound(bench, ours_at, ("clip_prepare", "clips", "clip_bound"), work)
    bench.record("clips_vs_bound", statistics.median(ratios))
    bodies: dict[str, Callable[[], object]] = {"ours": lambda: ours.ask("clips", **work)}
    for name in ("lerobot", "mds"):
        if name in peers:
            bodies[name] = functools.partial(peers[name].ask, "clips", **work)
    if len(bodies) == 1:
        return
    rounds = bench.interleave(bodies, repeats=5)
    for name in ("lerobot", "mds"):
        if name in peers:
            bench.record(f"clips_vs_{name}", rounds.ratio(name, "ours"))


def two_workers(bench: Bench, ours_at: Path, data: Path) -> None:
    """Two workers on both sides, in fresh processes: LeRobot must not have decoded in the parent before."""
    work = {"n": 96, "seed": 2, "batch": BATCH}
    ours = Peer(Path(sys.executable), "own_peer.py", str(ours_at))
    theirs = Peer(PEERS / "lerobot/bin/python", "lerobot_peer.py", str(data / "lerobot-av1"))

    def both(repeats: int, **more: Any) -> Rounds:
        return bench.interleave(
            {
                "ours": lambda: ours.ask("workers", **work, **more),
                "lerobot": lambda: theirs.ask("workers", **work, **more),
            },
            repeats=repeats,
        )

    try:
        bench.record("workers_vs_lerobot", both(3).ratio("lerobot", "ours"))
        bench.record("workers_pss_vs_lerobot", both(1, pss=True).ratio("ours", "lerobot", of="pss_bytes"))
    finally:
        ours.close()
        theirs.close()


def _cold(ours: Peer, manifest: Path, episodes: int) -> Sample:
    """CPU seconds from the constructor to the first sample, as the peer process measured them."""
    return Sample(ours.ask("cold", manifest=str(manifest), episodes=episodes).result, 1.0)


def cold_open(bench: Bench, ours: Peer, ours_at: Path, temp: Path, data: Path | None) -> None:
    """Constructor to first sample, by number of episodes."""
    from kinemill.loaders import Manifest
    from support.loaders import manifest_of

    first = Manifest.from_file(ours_at / "vla.arrow")[0]
    row = {name: getattr(first, name) for name in first.__dataclass_fields__}
    counts = (12, 1200, bench.pick(quick=50_000, full=1_000_000))
    paths = {}
    for count in counts:
        paths[count] = manifest_of(temp / f"{count}.arrow", [row] * count)
    rounds = bench.interleave(
        {str(n): functools.partial(_cold, ours, paths[n], n) for n in counts},
        repeats=bench.pick(quick=3, full=5),
    )
    few, many = counts[0], counts[-1]
    bench.say(
        f"cold open: {rounds.median('12') * 1e3:.1f} ms at 12, "
        f"{rounds.median(str(many)) * 1e3:.1f} ms at {many} episodes"
    )
    bench.record("open_us_per_episode", max(0.0, rounds.difference(str(many), str(few)) / (many - few) * 1e6))
    if data is None:
        return
    python = PEERS / "lerobot/bin/python"
    info = json.loads((data / "lerobot-av1/meta/info.json").read_text())
    times = 1200 // info["total_episodes"]
    large = built(
        data / "lerobot-1200",
        lambda p: run(python, "lerobot_peer.py", "replicate", str(data / "lerobot-av1"), str(p), str(times)),
    )
    peer = Peer(python, "lerobot_peer.py", str(large))
    try:
        both = bench.interleave(
            {
                "lerobot": lambda: Sample(peer.ask("cold").result, 1.0),
                "ours": lambda: Sample(ours.ask("cold", manifest=str(paths[1200]), episodes=1200).result, 1.0),
            },
            repeats=7,
        )
    finally:
        peer.close()
    bench.record("open_vs_lerobot", both.ratio("lerobot", "ours"))


def memory(bench: Bench, ours_at: Path) -> None:
    """Own memory of a fresh process over a training loop: highest after the first tenth against highest at its end."""
    ours = Peer(Path(sys.executable), "own_peer.py", str(ours_at))
    try:
        seen: list[int] = ours.ask("epochs", batch=BATCH, steps=bench.pick(quick=30, full=180)).result
    finally:
        ours.close()
    tenth = max(2, len(seen) // 10)
    # highest of a stretch against highest of a stretch: a single moment depends on which batch is just being freed
    early, late = max(seen[tenth : 4 * tenth]), max(seen[-3 * tenth :])
    bench.say(f"own memory {early / 1e6:.0f} MB early, {late / 1e6:.0f} MB late in {len(seen)} steps")
    bench.record("memory_growth", max(0.0, (late - early) / early * 100))


@contextlib.contextmanager
def server(ours_at: Path) -> Iterator[Any]:
    """A real S3 server with our episodes behind a relay that counts and delays."""
    from kinemill.loaders.stores import use_store
    from kinemill.store.embedded import S3Server
    from kinemill.store.s3 import S3Store
    from support.loaders_proxy import Relay

    with S3Server() as s3, Relay(s3.endpoint) as relay:
        os.environ.update(s3.environ())
        store = S3Store(replace(s3.address, endpoint=relay.endpoint), s3.credentials)
        told = json.loads((ours_at / "renditions.json").read_text())
        for key, kind in told.items():
            if kind == "vla":
                store.put_if_absent(key, ours_at / "bucket" / key)
        use_store(store)
        yield store, relay


def over_the_wire(bench: Bench, ours_at: Path) -> None:
    """Requests and bytes at the server, and the rate at 30 ms a request."""
    import time

    import own_peer

    from kinemill.contracts import layout_key
    from kinemill.episode import Layout
    from kinemill.loaders import Manifest, ReadSettings

    with server(ours_at) as (store, relay):
        plain = own_peer.dataset(ours_at, "vla", store=store, read=ReadSettings(prefetch=0, cache_mib=0))
        picks = list(range(2, len(plain), max(1, len(plain) // 40)))
        relay.clear()
        for pick in picks:
            plain.read([pick])
        counted, sent, _ = relay.counted
        bench.record("requests_per_sample", sum(counted.values()) / len(picks))
        rows = Manifest.from_file(ours_at / "vla.arrow")
        window = 0
        for pick in picks:
            job = plain.locate(pick)
            layout = Layout.from_columns(rows[job.row].topics, rows[job.row].layout or b"")
            window += window_bytes(layout, plain, job.step)
        bench.record("bytes_over_window", sent / window)
        for row in rows:
            with contextlib.suppress(Exception):
                store.put_if_absent(layout_key(row.key), row.layout or b"")
        bare = own_peer.dataset(ours_at, "vla-sidecar", store=store, read=ReadSettings(prefetch=0, cache_mib=0))
        relay.clear()
        bare.read([5])
        once = sum(relay.counted[0].values())
        bare.read([25])
        twice = sum(relay.counted[0].values()) - once
        bench.record("sidecar_extra", once - twice)

        def rate(delay: float) -> tuple[float, float]:
            """(samples/s on the clock, share of the workers' time that is not waiting for bytes), once warm."""
            relay.set_delay(delay)
            data = own_peer.dataset(ours_at, "vla", store=store, read=ReadSettings(prefetch=16))
            loader = data.loader(BATCH, workers=2, multiprocessing_context="fork")
            start, seen, waited, busy = 0.0, 0, 0.0, 0.0
            for step, batch in enumerate(loader):
                if step == 3:
                    start = time.perf_counter()
                if step > 3:
                    seen += 1
                    wait, work = batch["seconds"].sum(0).tolist()
                    waited, busy = waited + wait, busy + work
                if step >= bench.pick(quick=14, full=24):
                    break
            return seen / (time.perf_counter() - start), busy / (busy + waited)

        walls, shares = [], []
        for _ in range(bench.pick(quick=1, full=5)):
            without, with_delay = rate(0.0), rate(0.030)
            walls.append(with_delay[0] / without[0])
            shares.append(with_delay[1] / without[1])
        bench.record("latency_30ms", sorted(shares)[len(shares) // 2])
        bench.record("latency_30ms_wall", sorted(walls)[len(walls) // 2])


def window_bytes(layout: Any, data: Any, step: int) -> int:
    """Bytes of the chunks that a sample's window touches, whole GOPs and whole state chunks."""
    import numpy as np

    cameras, state = layout.groups
    chunk = int(np.searchsorted(np.cumsum(cameras.counts[0]), step, "right"))
    t = round(step * 1e9 / 30)
    touched = (state.t_last_ns >= t - 5_000_000) & (state.t_first_ns <= t + 50 * 5_000_000)
    return int(cameras.length[chunk]) + int(state.length[touched].sum())


if __name__ == "__main__":
    main()
