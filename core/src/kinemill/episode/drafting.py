"""What a file that is being written says of itself: `tg.layout`, and the receipt of what lies where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kinemill import records
from kinemill.contracts.episode import ChunkTable, GopTable, GroupReceipt, Receipt, TopicReceipt
from kinemill.episode.container import Placed
from kinemill.episode.counts import run_lengths
from kinemill.episode.schemas import JOINT_STATE, SchemaText
from kinemill.episode.span_group import SpanGroup
from kinemill.episode.topics import Profile, TopicSpec, codec_of
from kinemill.episode.video_group import VideoGroup

__all__ = ["draft_receipt", "layout_items"]


def layout_items(
    episode_id: str, profile: Profile, groups: Sequence[VideoGroup | SpanGroup], *, live: bool
) -> dict[str, str]:
    """What the metadata record `tg.layout` says of a file."""
    return {
        "version": "1",
        "episode_id": episode_id,
        "profile": profile.name,
        "live": "true" if live else "false",
        "gop_frames": str(profile.gop_frames),
        "cut.video": "one GOP" if profile.chunk_bytes == 0 else f"whole GOPs to {profile.chunk_bytes} bytes",
        "cut.span_ns": str(profile.span_ns),
        "reorder_ns": str(profile.reorder_ns),
        "encoder": f"libx264 preset={profile.preset} tune={profile.tune} crf={profile.crf:g}",
        "groups": records.dumps({g.name: [s.topic for s in g.specs] for g in groups}),
    }


def draft_receipt(
    episode_id: str,
    profile: Profile,
    *,
    specs: Sequence[TopicSpec],
    schemas: Sequence[SchemaText],
    groups: Mapping[str, VideoGroup | SpanGroup],
    placed: Mapping[str, Placed],
    sizes: Mapping[str, tuple[int, int]],
    counts: Mapping[str, int],
    live: bool,
    writer: str,
) -> Receipt:
    """The receipt without size and sha256, which are only known at the very end.

    Args:
        episode_id: UUID.
        profile: Of the file.
        specs: Every topic; its channel id is its place, from 1.
        schemas: Of each topic.
        groups: By name, in file order.
        placed: Where each group's chunks lie.
        sizes: topic -> (width, height), where packets or images told it.
        counts: What happened how often.
        live: Whether chunks were cut wherever in a GOP.
        writer: Name and version.
    """
    of_topic = {spec.topic: (i + 1, schemas[i]) for i, spec in enumerate(specs)}
    receipts = [_group(group, placed[name], of_topic, sizes, live=live) for name, group in groups.items()]
    filled = [g for g in receipts if g.messages]
    written = {t.topic for g in receipts for t in g.topics if t.messages}
    return Receipt(
        episode_id,
        profile.name,
        0,
        "",
        min((g.t_first_ns for g in filled), default=0),
        max((g.t_last_ns for g in filled), default=0),
        tuple(receipts),
        profile.gop_frames if any(isinstance(g, VideoGroup) for g in groups.values()) else None,
        tuple(s.topic for s in specs if s.topic not in written),
        {k: v for k, v in sorted(counts.items()) if v},
        writer,
    )


def _group(
    group: VideoGroup | SpanGroup,
    placed: Placed,
    of_topic: Mapping[str, tuple[int, SchemaText]],
    sizes: Mapping[str, tuple[int, int]],
    *,
    live: bool,
) -> GroupReceipt:
    counts = np.array(placed.counts, np.int64).reshape(-1, len(group.specs)).T
    totals = counts.sum(axis=1).tolist()
    topics = []
    for spec, total in zip(group.specs, totals, strict=True):
        channel, schema = of_topic[spec.topic]
        topics.append(
            TopicReceipt(
                spec.topic,
                spec.kind,
                channel,
                schema.name,
                schema.message_encoding,
                int(total),
                None if spec.rate_hz is None else float(spec.rate_hz),
                codec_of(spec),
                *_size_of(group, spec, sizes),
                spec.names,
                spec.units,
                spec.fields if spec.names and schema.name == JOINT_STATE else (),
            )
        )
    table = ChunkTable(
        tuple(placed.offset),
        tuple(placed.length),
        tuple(placed.t_first),
        tuple(placed.t_last),
        tuple(sum(c) for c in placed.counts),
        tuple(placed.crc),
        tuple(run_lengths(row) for row in counts),
    )
    several = isinstance(group, VideoGroup) and (live or len(placed.gops) != len(placed.offset))
    return GroupReceipt(
        group.name,
        tuple(topics),
        placed.offset[0] if placed.offset else 0,
        placed.end - placed.offset[0] if placed.offset else 0,
        int(sum(totals)),
        min(placed.t_first, default=0),
        max(placed.t_last, default=0),
        table,
        GopTable(*(tuple(g[i] for g in placed.gops) for i in range(3))) if several else None,
        group.late,
        placed.skew_ns,
    )


def _size_of(
    group: VideoGroup | SpanGroup, spec: TopicSpec, sizes: Mapping[str, tuple[int, int]]
) -> tuple[int | None, int | None]:
    size = group.size_of(spec.topic) if isinstance(group, VideoGroup) else None
    return size or sizes.get(spec.topic) or (spec.width, spec.height)
