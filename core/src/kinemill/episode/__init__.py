"""Episodes: one recording as one MCAP file whose topic groups are contiguous byte ranges.

Write (a local path is completed under a temporary name, then renamed)::

    from pathlib import Path
    from kinemill.episode import EpisodeWriter, TopicSpec, TopicKind

    topics = [
        TopicSpec("/cam/front", rate_hz=30, width=640, height=480),
        TopicSpec("/cam/wrist", rate_hz=30, width=640, height=480),
        TopicSpec("/joint_states", TopicKind.STATE, rate_hz=200, names=("j1", "j2"), units="rad"),
        TopicSpec("/action", TopicKind.STATE, rate_hz=200, names=("j1", "j2"), units="rad"),
    ]
    with EpisodeWriter(Path("e.mcap"), episode_id=uid, profile="vla", topics=topics) as writer:
        writer.frame("/cam/front", t_ns, rgb)            # uint8 [H, W, 3], encoded in parallel
        writer.packet("/cam/wrist", t_ns, annexb)        # or H.264 as it is (one kind of both a group)
        writer.rows("/joint_states", t_ns, values)       # int and [columns], or int64 [n] and [n, columns]
    receipt = writer.receipt
    rendition = publish(store, Path("e.mcap"), receipt)  # create-if-absent under its content's key

Carry the layout in a manifest, and read any window with one ranged read per group::

    topics_json, packed = Layout.from_receipt(receipt).columns()
    layout = Layout.from_columns(topics_json, packed)
    reader = EpisodeReader.open(store, key, layout=layout)
    answer = reader.read([
        Window.at("/cam/front", [t_ns - 100_000_000, t_ns]),
        Window.at("/action", [t_ns + i * 20_000_000 for i in range(50)]),
    ])
    t_ns, pictures, is_pad = answer["/cam/front"]        # int64 [2], uint8 [2, H, W, 3], bool [2]

`reader.plan(windows).ranges` and `reader.decode(plan, blobs)` are the two halves of `read`, for a
loader that fetches in its own way. The format is described in docs/episode-format.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinemill.contracts.episode import Receipt, Rendition, TopicKind
    from kinemill.episode.decode import DecoderPool
    from kinemill.episode.layout import GroupLayout, Layout
    from kinemill.episode.publishing import publish
    from kinemill.episode.reader import EpisodeReader, Plan
    from kinemill.episode.topics import PROFILES, Profile, TopicSpec, profile_of
    from kinemill.episode.window import Window
    from kinemill.episode.writer import EpisodeWriter

_WHERE = {
    "DecoderPool": "kinemill.episode.decode",
    "EpisodeReader": "kinemill.episode.reader",
    "EpisodeWriter": "kinemill.episode.writer",
    "GroupLayout": "kinemill.episode.layout",
    "Layout": "kinemill.episode.layout",
    "PROFILES": "kinemill.episode.topics",
    "Plan": "kinemill.episode.reader",
    "Profile": "kinemill.episode.topics",
    "Receipt": "kinemill.contracts.episode",
    "Rendition": "kinemill.contracts.episode",
    "TopicKind": "kinemill.contracts.episode",
    "TopicSpec": "kinemill.episode.topics",
    "Window": "kinemill.episode.window",
    "profile_of": "kinemill.episode.topics",
    "publish": "kinemill.episode.publishing",
}

__all__ = [
    "PROFILES",
    "DecoderPool",
    "EpisodeReader",
    "EpisodeWriter",
    "GroupLayout",
    "Layout",
    "Plan",
    "Profile",
    "Receipt",
    "Rendition",
    "TopicKind",
    "TopicSpec",
    "Window",
    "profile_of",
    "publish",
]


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): `import kinemill.episode` itself costs nothing."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
