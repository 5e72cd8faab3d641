"""The report page: one HTML file with everything inside, made from the facts that the run collected."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.charts import Bar, Message, Piece, bars, layout_picture, loss_curve

if TYPE_CHECKING:
    from demo.pictures import Comparison
    from demo.reads import Reads

__all__ = ["EpisodeView", "Facts", "FileView", "page"]


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """One episode with frames of its cameras."""

    vendor: str
    source: str
    quirks: tuple[str, ...]
    path: str
    """The .mcap on this machine."""
    strips: dict[str, list[str]]
    """Camera topic -> frames as data URIs."""


@dataclass(frozen=True, slots=True)
class FileView:
    """One file from the inside."""

    path: str
    size_bytes: int
    pieces: list[Piece]
    messages: list[Message]
    chunks: list[tuple[int, int]]


@dataclass(slots=True)
class Facts:
    """What the run found."""

    stages: list[tuple[str, float]] = field(default_factory=list)
    second_run: bool = False
    drops: list[dict[str, Any]] = field(default_factory=list)
    ingests: list[dict[str, Any]] = field(default_factory=list)
    """What `kinemill ingest run --json` said, one per drop."""
    manifest: dict[str, Any] = field(default_factory=dict)
    """What `kinemill manifest build --json` said."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """All metrics rows of the run, over all attempts."""
    attempts: list[dict[str, Any]] = field(default_factory=list)
    run: str = ""
    reads: Reads | None = None
    """Of random samples, nothing kept between them."""
    kept: Reads | None = None
    """The same with the loader's cache of fetched ranges."""
    comparisons: list[Comparison] = field(default_factory=list)
    episodes: list[EpisodeView] = field(default_factory=list)
    file: FileView | None = None

    def evaluation(self) -> dict[str, Any]:
        """The last one."""
        return next((r for r in reversed(self.rows) if r.get("event") == "evaluation"), {})

    def learned(self) -> bool:
        """Held-out error at most 0.8 of predicting the mean, and at least 1.2 times that with blank frames."""
        found = self.evaluation()
        return bool(found) and found["against_mean"] <= 0.8 and found["blank_against_seeing"] >= 1.2

    def summary(self) -> dict[str, Any]:
        """What a program may want to know of the run; `facts.json`."""
        package = self.manifest.get("package", {})
        return {
            "seconds": {name: round(seconds, 2) for name, seconds in self.stages},
            "second_run": self.second_run,
            "ingested": [
                {
                    "vendor": drop["vendor"],
                    "episodes": found["episodes"],
                    "published_now": found["report"]["published"],
                    "put_aside": [[r["source"], r["code"], r["message"]] for r in found["report"]["quarantined"]],
                }
                for drop, found in zip(self.drops, self.ingests, strict=True)
            ],
            "manifest": {k: package.get(k) for k in ("id", "rows", "splits", "sha256")},
            "attempts": self.attempts,
            "evaluation": self.evaluation(),
            "reads": None if self.reads is None else asdict(self.reads),
            "against_jpeg": {c.topic: {"ratio": c.ratio, "psnr_db": c.psnr_db} for c in self.comparisons},
            "learned": self.learned(),
        }

    def curves(self) -> list[tuple[int, list[tuple[int, float]]]]:
        """(attempt, (step, loss)) of the attempts that made steps."""
        found: dict[int, list[tuple[int, float]]] = {}
        for row in self.rows:
            if row.get("loss") is not None:
                found.setdefault(row["attempt"], []).append((row["step"], row["loss"]))
        return sorted(found.items())

    def killed_at(self) -> dict[int, int]:
        """Attempt -> last step, of those that failed after they made steps."""
        failed = {a["number"] for a in self.attempts if a["outcome"] == "failed"}
        return {number: rows[-1][0] for number, rows in self.curves() if number in failed}


CSS = Path(__file__).with_name("report.css").read_text(encoding="utf-8")


def page(facts: Facts) -> str:
    """The whole page."""
    parts = [
        _head(facts),
        _learning(facts),
        _episodes(facts),
        _inside(facts),
        _cost(facts),
        _ingest(facts),
        _attempts(facts),
        _time(facts),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>kinemill demo</title><style>{CSS}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _e(value: object) -> str:
    return html.escape(str(value))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """Cells are HTML already."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{' class=n' if i in numbers else ''}>{c}</{tag}>" for i, c in enumerate(cells))

    body = "".join(f"<tr>{row(r, 'td')}</tr>" for r in rows)
    return f'<div class="scroll"><table><thead><tr>{row(head, "th")}</tr></thead><tbody>{body}</tbody></table></div>'


def _head(facts: Facts) -> str:
    found = facts.evaluation()
    package = facts.manifest.get("package", {})
    published = sum(_published(i) for i in facts.ingests)
    cards = [
        (str(published), "episodes of three vendors"),
        (f"{found['against_mean']:.2f}" if found else "-", "held-out error, of predicting the mean"),
        (f"{facts.reads.per_sample:.2f}" if facts.reads else "-", "requests for a random sample"),
        (f"{facts.comparisons[0].ratio:.1f}x" if facts.comparisons else "-", "smaller than JPEG at equal PSNR"),
    ]
    again = " This was a second run: nothing was ingested again." if facts.second_run else ""
    return (
        "<h1>From vendor files to training steps</h1>"
        f'<p class="soft">Manifest <code>{_e(package.get("id", "-"))}</code>, {_e(package.get("rows", "-"))} episodes, '
        f"{facts.manifest.get('plan', {}).get('frames', 0):,} frames.{again}</p>"
        '<div class="cards">'
        + "".join(f'<div class="card"><b>{_e(value)}</b><span>{_e(what)}</span></div>' for value, what in cards)
        + "</div>"
    )


def _published(ingest: dict[str, Any]) -> int:
    return int(ingest["episodes"])


def _learning(facts: Facts) -> str:
    found = facts.evaluation()
    verdict = (
        '<span class="ok">It learned, and from the pictures.</span>'
        if facts.learned()
        else '<span class="bad">It did not learn enough.</span>'
    )
    rows = []
    if found:
        rows = [
            Bar("always the mean action", found["mean_error"], f"{found['mean_error']:.3f}"),
            Bar("the policy, frames blanked", found["blank_error"], f"{found['blank_error']:.3f}"),
            Bar("the policy", found["error"], f"{found['error']:.3f}", strong=True),
        ]
    return (
        "<h2>Training, killed once on the way</h2>"
        "<p>Two ranks, one Muon over <code>split_params(model)</code>. Rank 1 is ended by SIGKILL; both ranks restart "
        "in place from the last published checkpoint, at the data position that it holds.</p>"
        f'<div class="figure">{loss_curve(facts.curves(), killed_at=facts.killed_at())}</div>'
        f"<h3>Held-out episodes: root mean square error of the actions</h3><p>{verdict} In spreads of the training "
        f"actions, over {found.get('samples', 0)} samples of episodes that the training never saw.</p>"
        f'<div class="figure">{bars(rows, title="Held-out action error")}</div>'
    )


def _episodes(facts: Facts) -> str:
    intro = (
        "<h2>Episodes</h2><p>The disc says where the arm is sent, its colour whether the gripper opens: the action can "
        "be read off the picture, and hardly off the joints. Open any of these files in Foxglove or Rerun.</p>"
    )
    parts = [intro]
    for episode in facts.episodes:
        strips = "".join(
            f'<div class="soft"><code>{_e(topic)}</code></div><div class="strip">'
            + "".join(f'<img src="{uri}" alt="frame of {_e(topic)}">' for uri in uris)
            + "</div>"
            for topic, uris in episode.strips.items()
        )
        quirks = "; ".join(_e(q) for q in episode.quirks)
        about = f"<p>Set right on the way: {quirks}.<br><code>{_e(episode.path)}</code></p>"
        parts.append(f"<h3>{_e(episode.vendor)}</h3>{about}{strips}")
    return "".join(parts)


def _inside(facts: Facts) -> str:
    view = facts.file
    if view is None:
        return ""
    return (
        "<h2>One file from the inside</h2>"
        "<p>A valid MCAP. All frames of a moment lie together, so any window of a group is one ranged read, and a "
        "chunk is one GOP, so nothing more than needed is decoded. State follows behind the last camera chunk.</p>"
        f'<div class="figure">{layout_picture(view.pieces, view.size_bytes, view.messages, view.chunks)}</div>'
        f"<p><code>{_e(view.path)}</code></p>"
    )


def _cost(facts: Facts) -> str:
    parts = ["<h2>What a picture and a sample cost</h2>"]
    for found in facts.comparisons:
        rows = [
            Bar(
                f"JPEG, quality {found.jpeg_quality:.0f}",
                found.jpeg_bytes / found.frames,
                f"{found.jpeg_bytes / found.frames / 1e3:.2f} kB",
            ),
            Bar(
                "this episode",
                found.video_bytes / found.frames,
                f"{found.video_bytes / found.frames / 1e3:.2f} kB",
                strong=True,
            ),
        ]
        parts.append(
            f"<h3><code>{_e(found.topic)}</code>: bytes per frame at {found.psnr_db:.1f} dB</h3>"
            f'<div class="figure">{bars(rows, title="Bytes per frame at equal PSNR")}</div>'
        )
    if facts.comparisons:
        parts.append(
            '<p class="soft">PSNR against the raw pictures that this vendor delivered '
            f"({facts.comparisons[0].raw_bytes / facts.comparisons[0].frames / 1e3:.1f} kB each), over all "
            f"{facts.comparisons[0].frames} frames; JPEG 4:2:0, between the two nearest qualities.</p>"
        )
    if facts.reads:
        reads, kept = facts.reads, facts.kept
        cached = f" With the loader's cache of fetched ranges on, {kept.per_sample:.2f}." if kept else ""
        parts.append(
            f"<p>{reads.samples} random samples (two cameras, joints, eight actions): the store counted "
            f"<b>{reads.requests}</b> requests, {reads.per_sample:.2f} a sample (one per topic group; neighbours in a "
            f"batch share one), and {reads.bytes_per_sample / 1e3:.1f} kB a sample.{cached}</p>"
        )
    return "".join(parts)


def _ingest(facts: Facts) -> str:
    rows = []
    aside = []
    for drop, found in zip(facts.drops, facts.ingests, strict=True):
        rows.append(
            [
                f"<code>{_e(drop['vendor'])}</code>",
                _e(_published(found)),
                f"{found['bytes'] / 1e6:.2f} MB",
                _e(found["report"]["done_before"]),
                _e(len(found["report"]["quarantined"])),
            ]
        )
        for record in found["report"]["quarantined"]:
            aside.append([f"<code>{_e(record['source'])}</code>", _e(record["code"]), _e(record["message"])])
    return (
        "<h2>Ingestion</h2>"
        + _table(
            ["vendor", "episodes", "in the store", "recordings done before", "put aside"], rows, numbers=(1, 2, 3, 4)
        )
        + "<h3>Put aside, with the reason</h3>"
        + _table(["source", "code", "reason"], aside)
    )


def _attempts(facts: Facts) -> str:
    rows = [
        [
            f"{a['number']:06d}",
            _e("the start" if a["resume_step"] is None else f"step {a['resume_step']}"),
            _e(a["last_step"] if a["last_step"] is not None else "-"),
            _e(a["outcome"]),
            _e(a["cause"] or ""),
        ]
        for a in facts.attempts
    ]
    return (
        "<h2>Attempts</h2><p>Each keeps its logs, stacks, flight recorder and exit reports; no later one touches them."
        f"<br><code>{_e(facts.run)}/attempts</code></p>"
        + _table(["attempt", "began at", "last step", "outcome", "cause"], rows, numbers=(2,))
    )


def _time(facts: Facts) -> str:
    rows = [[_e(name), f"{seconds:.1f} s"] for name, seconds in facts.stages]
    return "<h2>Time</h2>" + _table(["stage", "time"], rows, numbers=(1,))
