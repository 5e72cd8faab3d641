"""`make demo-local`: messy vendor files in, training steps out, on this machine. Run it as `python -m demo.run`."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - said before anything newer is imported, to whoever calls it by hand
    sys.exit("demo: this Python is too old, 3.11 is needed: make demo-local PYTHON=/path/to/python3.11")

import signal

if __name__ != "demo.run" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C before `main`: nothing has begun, so end without a word

import argparse
import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from demo import pipeline, preflight
from demo.report import EpisodeView, Facts, FileView, page
from demo.screen import Screen

from kinemill.cli import was_interrupted
from kinemill.errors import KinemillError

if TYPE_CHECKING:
    from kinemill.pipelines.catalog.embedded import PostgresServer
    from kinemill.store.embedded import S3Server

__all__ = ["main"]

TOPICS = ("/cam/scene", "/cam/wrist")
STRIP = 8
SPLIT_SEED = 92
"""Holds out two of eight episodes of every vendor, and one of four; the split is a hash of the episode's id."""


class _Stopped(BaseException):
    """SIGTERM; ends the demo the way Ctrl-C does."""


def main(argv: list[str] | None = None) -> int:
    """Command line; exit code 0 ran and learned, 1 something is wrong, 75 try again, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="make demo-local", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/demo"), help="where everything goes")
    parser.add_argument("--episodes", type=int, default=8, help="good episodes per vendor; a broken one comes on top")
    parser.add_argument("--seconds", type=float, default=12.0, help="length of each")
    parser.add_argument("--steps", type=int, default=300, help="training steps")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    folder = args.dir.absolute()
    screen = Screen(7)

    def stop(_signum: int, _frame: FrameType | None) -> None:
        raise _Stopped

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, stop)
    try:
        preflight.make_folder(folder)
        for warning in preflight.check_machine(folder):
            screen.say(f"note: {warning}")
        with preflight.alone(folder) as lock:
            pipeline.keep_open(lock)
            facts = _run(folder, args, screen)
    except KinemillError as exc:
        print(f"demo: {exc}", file=sys.stderr)
        return exc.exit_code
    except BaseException as exc:
        if not was_interrupted(exc, (KeyboardInterrupt, _Stopped)):
            raise
        where = screen.stages[-1].name if screen.stages else "the beginning"
        print(f"\ndemo: interrupted in '{where}'; servers are stopped, the next run goes on from here", file=sys.stderr)
        return 130
    _end_table(screen, facts, folder)
    return 0 if facts.learned() else 1


def _run(folder: Path, args: argparse.Namespace, screen: Screen) -> Facts:
    facts = Facts()
    with contextlib.ExitStack() as stack:
        with screen.stage("start Postgres and S3"):
            postgres, s3 = _servers(folder, stack)
            screen.say(f"PostgreSQL {postgres.binaries.major}, SeaweedFS at {s3.endpoint}, both on loopback only")
            env = _environment(folder, postgres, s3)
            _upgrade(postgres.url)
        with screen.stage("make three vendors' drops"):
            wanted = pipeline.Drops(args.seed, args.episodes, args.seconds)
            facts.drops, made = pipeline.make_drops(folder / "drops", wanted, screen.live)
            screen.say("made" if made else "they were made before")
        with screen.stage("ingest"):
            _ingest(facts, env, screen)
        with screen.stage("export to the warehouse, build the manifest"):
            _manifest(folder, facts, env, screen)
        with screen.stage("train, killed once on the way"):
            _train(folder, args.steps, facts, env, screen)
        with screen.stage("measure what a sample costs"):
            _measure(facts, env, s3, screen)
        with screen.stage("write the report"):
            _look(folder, facts, env)
    facts.stages = [(s.name, s.seconds) for s in screen.stages]
    facts.second_run = all(i["report"]["done_before"] == i["report"]["recordings"] for i in facts.ingests)
    _write(folder / "facts.json", json.dumps(facts.summary(), indent=1) + "\n")
    _write(folder / "report.html", page(facts))
    return facts


def _write(path: Path, text: str) -> None:
    """All of it or nothing."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


# ---- stages


def _servers(folder: Path, stack: contextlib.ExitStack) -> "tuple[PostgresServer, S3Server]":
    """Both at once; whichever started is stopped again, whatever happens to the other."""
    from kinemill.pipelines.catalog.embedded import PostgresServer
    from kinemill.store.embedded import S3Server

    postgres = PostgresServer(folder / "state" / "postgres")
    s3 = S3Server(folder / "state" / "s3", bucket="corpus")
    stack.callback(postgres.stop)
    stack.callback(s3.stop)
    with ThreadPoolExecutor(2, thread_name_prefix="server") as pool:
        first, second = pool.submit(postgres.start), pool.submit(s3.start)
        first.result()
        second.result()
    return postgres, s3


def _environment(folder: Path, postgres: "PostgresServer", s3: "S3Server") -> dict[str, str]:
    """What the commands need; secrets travel in the environment only."""
    state = folder / "state"
    for sub in ("work", "cache", "runs"):
        (state / sub).mkdir(exist_ok=True)
    return {
        **s3.environ(),
        "KINEMILL_CATALOG_URL": postgres.url,
        "KINEMILL_STORE_URL": "s3://corpus",
        "KINEMILL_WAREHOUSE_URL": "s3://corpus/warehouse",
        "KINEMILL_INGEST_DIR": str(state / "work"),
        "KINEMILL_CACHE_DIR": str(state / "cache"),
        "KINEMILL_CONFIG_DIR": str(state / "config"),  # the demo's settings, not this machine's
        "KINEMILL_LOG_FORMAT": "text",  # among the demo's own lines
    }


def _upgrade(url: str) -> None:
    from kinemill.pipelines.catalog import Catalog

    with Catalog(url) as catalog:
        catalog.upgrade()


def _ingest(facts: Facts, env: dict[str, str], screen: Screen) -> None:
    for drop in facts.drops:
        screen.live(f"{drop['vendor']} ...")
        command = ["ingest", "run", drop["path"], "--vendor", drop["vendor"], "--json"]
        report = pipeline.kinemill(command, env, ok=(0, 1)).json()
        done, of = report["done_before"], report["recordings"]
        if done == of:
            screen.say(f"{drop['vendor']}: nothing to ingest, all {of} recordings were ingested before")
        else:
            before = f", {done} recordings were ingested before" if done else ""
            screen.say(f"{drop['vendor']}: {report['published']} episodes published{before}")
        for record in report["quarantined"]:
            screen.say(f"  put aside {record['source']}: {_short(record['message'])}")
        facts.ingests.append({"report": report, "episodes": 0, "bytes": 0})


def _short(text: str) -> str:
    """The report has all of it."""
    return text if len(text) <= 150 else text[:147].rsplit(" ", 1)[0] + " ..."


def _manifest(folder: Path, facts: Facts, env: dict[str, str], screen: Screen) -> None:
    rows = pipeline.kinemill(["warehouse", "sync", "--json"], env).json()["rows"]
    screen.say(f"{rows} new rows in the warehouse")
    query = "select vendor, count(*), sum(size_bytes) from episodes group by 1"
    by_vendor = {r[0]: r[1:] for r in pipeline.kinemill(["warehouse", "sql", query, "--json"], env).json()["rows"]}
    for drop, found in zip(facts.drops, facts.ingests, strict=True):
        episodes, size = by_vendor.get(drop["vendor"], (0, 0))
        found["episodes"], found["bytes"] = int(episodes), int(size)
    spec = folder / "state" / "reach.yaml"
    pipeline.write_spec(spec, split_seed=SPLIT_SEED)
    facts.manifest = pipeline.kinemill(["manifest", "build", str(spec), "--json"], env).json()
    package = facts.manifest["package"]
    was = "built" if facts.manifest["new"] else "was built before"
    screen.say(f"manifest {package['id']} {was}: {package['rows']} episodes, splits {package['splits']}")


def _train(folder: Path, steps: int, facts: Facts, env: dict[str, str], screen: Screen) -> None:
    package = facts.manifest["package"]
    run = folder / "state" / "runs" / f"{package['sha256'][:12]}-{steps}"
    job = folder / "state" / "job.toml"
    pipeline.write_job(job, run=run, manifest=package["id"], steps=steps)
    began: set[int] = set()

    def show(line: str) -> None:
        row = json.loads(line)
        if row.get("loss") is not None:
            screen.live(f"attempt {row['attempt']}: step {row['step']}/{steps}, loss {row['loss']:.3f}")
        elif row.get("event") == "start":
            came = row["resume_step"]
            first = not began
            began.add(row["attempt"])
            if came is None:
                screen.say(
                    f"attempt {row['attempt']} begins: {row['world_size']} ranks, {row['parameters']:,} parameters"
                )
            elif came >= steps:
                screen.say(f"it was trained to step {came} before; only the evaluation runs")
            elif first:
                screen.say(f"attempt {row['attempt']} goes on from step {came}, where an earlier run stopped")
            else:
                screen.say(f"a rank was lost; attempt {row['attempt']} goes on in place from step {came}")
        elif row.get("event") == "result" and row["exit_code"] != 0:
            screen.say(f"training: {row['message']}")

    with (folder / "state" / "train.log").open("a") as log:
        pipeline.kinemill(["train", "run", str(job), "--json"], env, on_line=show, stderr=log)
    facts.run = str(run)
    _collect(run, facts)
    found = facts.evaluation()
    screen.say(
        f"held out: {found['against_mean']:.2f} of predicting the mean, "
        f"{found['blank_against_seeing']:.2f} times that with blank frames"
    )


def _collect(run: Path, facts: Facts) -> None:
    """The attempts' own records."""
    from kinemill import records
    from kinemill.training.attempts import read_meta, root_cause

    for attempt in sorted(p for p in (run / "attempts").iterdir() if p.name.isdigit()):
        meta = read_meta(attempt)
        if meta is not None:
            cause = root_cause(attempt) if meta.outcome.value == "failed" else None
            said = cause.replace(f"{attempt}/", "") if cause else None
            facts.attempts.append({**records.encode(meta), "cause": said})
        with contextlib.suppress(FileNotFoundError):
            facts.rows += [json.loads(line) for line in (attempt / "metrics.jsonl").read_text().splitlines()]


def _measure(facts: Facts, env: dict[str, str], s3: "S3Server", screen: Screen) -> None:
    from demo.reads import measure

    os.environ["KINEMILL_CACHE_DIR"] = env["KINEMILL_CACHE_DIR"]
    manifest = facts.manifest["package"]["id"]
    facts.reads = measure(s3.store(), manifest, s3.metrics_url, "corpus", cache_mib=0)
    facts.kept = measure(s3.store(), manifest, s3.metrics_url, "corpus", cache_mib=64)
    size_kb = facts.reads.bytes_per_sample / 1e3
    screen.say(f"{facts.reads.per_sample:.2f} requests and {size_kb:.1f} kB for a random sample")


def _look(folder: Path, facts: Facts, env: dict[str, str]) -> None:
    """Fetch one episode of each vendor, and look at it."""
    from demo import pictures
    from demo.charts import Message, Piece

    from kinemill.store.config import Credentials
    from kinemill.store.opening import open_store

    url = f"s3://corpus?endpoint={env['AWS_ENDPOINT_URL']}"
    store = open_store(url, credentials=Credentials(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]))
    place = folder / "episodes"
    place.mkdir(exist_ok=True)
    for drop, found in zip(facts.drops, facts.ingests, strict=True):
        source, key = _first_episode(found["report"]["batch"], env)
        path = place / f"{drop['vendor']}.mcap"
        path.unlink(missing_ok=True)
        store.download(key, path)
        strips = {
            topic: [pictures.data_uri(image) for image in pictures.read_frames(path, topic, STRIP)] for topic in TOPICS
        }
        facts.episodes.append(EpisodeView(drop["vendor"], source, tuple(drop["quirks"]), str(path), strips))
    path = place / f"{facts.drops[0]['vendor']}.mcap"
    pieces, size = pictures.file_pieces(path)
    opened = 3
    cameras = [(start, length) for name, start, length in pieces if name == "cameras"][:opened]
    facts.file = FileView(
        str(path),
        size,
        [Piece(*p) for p in pieces],
        [Message(*m) for m in pictures.first_frames(path, opened)],
        cameras,
    )
    raw_drop = next(d for d in facts.drops if d["vendor"] == "twinarm_aloha")
    facts.comparisons = pictures.compare_raw(Path(raw_drop["path"]) / "episode_0.hdf5", place / "twinarm_aloha.mcap")


def _first_episode(batch: str, env: dict[str, str]) -> tuple[str, str]:
    """(vendor's key, object key) of a batch's first episode."""
    from kinemill.pipelines.catalog import Catalog

    with Catalog(env["KINEMILL_CATALOG_URL"]) as catalog:
        rows = {row.card.vendor_key: row.card.episode_id for row in catalog.episodes(batch=batch)}
        source = min(rows)
        (rendition,) = catalog.renditions([rows[source]])
    return source, rendition.key


def _end_table(screen: Screen, facts: Facts, folder: Path) -> None:
    found, reads = facts.evaluation(), facts.reads
    rows: list[tuple[str, str]] = [
        (
            "episodes",
            ", ".join(f"{i['episodes']} {d['vendor']}" for d, i in zip(facts.drops, facts.ingests, strict=True)),
        ),
        ("put aside", str(sum(len(i["report"]["quarantined"]) for i in facts.ingests))),
        ("ingested again", "nothing" if facts.second_run else "first run"),
        ("manifest", f"{facts.manifest['package']['id']} ({facts.manifest['package']['rows']} episodes)"),
        ("attempts", ", ".join(f"{a['number']} {a['outcome']}" for a in facts.attempts)),
        ("held-out error", f"{found['against_mean']:.2f} of predicting the mean (0.80 asked for)"),
        ("frames blanked", f"{found['blank_against_seeing']:.2f} times the error (1.20 asked for)"),
    ]
    if reads is not None:
        rows.append(("a random sample", f"{reads.per_sample:.2f} requests, {reads.bytes_per_sample / 1e3:.1f} kB"))
    for c in facts.comparisons:
        rows.append((f"{c.topic} against JPEG", f"{c.ratio:.2f} times fewer bytes at {c.psnr_db:.1f} dB"))
    rows += [
        ("time", f"{sum(s for _, s in facts.stages):.0f} s"),
        ("report", f"file://{folder / 'report.html'}"),
        ("an episode", f"{folder / 'episodes'}/*.mcap (open in Foxglove or Rerun)"),
    ]
    screen.table("It runs." if facts.learned() else "It ran, but it did not learn enough.", rows)


if __name__ == "__main__":
    sys.exit(main())
