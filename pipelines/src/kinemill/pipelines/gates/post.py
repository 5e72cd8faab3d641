"""After conversion, before anything is published: is what was written sound, whole and plausible?"""

from __future__ import annotations

from kinemill.pipelines.adapters.base import EpisodeFacts, Finding, Level
from kinemill.pipelines.adapters.vendor import CameraMap, StateMap, VendorSpec
from kinemill.pipelines.gates.measure import Converted, TopicMeasure

__all__ = ["MIN_PSNR_DB", "judge_converted"]

MIN_PSNR_DB = 22.0
"""Below this, pictures read back are not those that were written: swapped, shifted or torn. A guess: crf 23 on
noisy texture measured 33 to 35 dB, exchanged red and blue about 15 dB."""


MIN_PICTURES = 10
"""Fewer say nothing about a frozen camera."""


def judge_converted(done: Converted, facts: EpisodeFacts | None, vendor: VendorSpec, where: str) -> list[Finding]:
    """Findings of one converted episode; a FAIL puts it aside, and it is never uploaded.

    Args:
        done: Its measures and receipt.
        facts: What the pre-gate saw of it; None where that is not known.
        vendor: The limits.
        where: What to call the episode.
    """
    out = list(done.findings)
    if done.receipt is None:
        return out
    limits = vendor.gates
    cameras = {t.topic for g in done.receipt.groups for t in g.topics if t.kind == "video" and t.messages}
    if limits.require_cameras and not cameras:
        out.append(Finding("no_cameras", Level.FAIL, f"{where}: no picture of any camera"))
    if limits.require_action and not any("action" in m.topic and m.messages for m in done.topics):
        out.append(Finding("no_action", Level.FAIL, f"{where}: no action"))
    if not any(m.messages for m in done.topics):
        out.append(Finding("nothing_mapped", Level.FAIL, f"{where}: no topic that could be read"))
    for measure in done.topics:
        out += _topic(measure, vendor, f"{where}, {measure.topic}", camera=measure.topic in cameras)
    out += _counts(done, where)
    if facts is not None:
        out += _against_facts(done, facts, vendor, where)
    return out


def _topic(m: TopicMeasure, vendor: VendorSpec, where: str, *, camera: bool) -> list[Finding]:
    limits = vendor.gates
    out = []
    if m.not_finite:
        text = f"{where}: {m.not_finite} of {m.messages} rows hold NaN or infinity, the first is row {m.first_bad_row}"
        out.append(Finding("nan_in_state", Level.FAIL, text, {"rows": str(m.not_finite)}))
    if m.largest_rad > limits.max_joint_rad:
        text = (
            f"{where}: an angle of {m.largest_rad:.4g} rad, the limit is {limits.max_joint_rad:g}: "
            "are these degrees? Set `unit: deg` in the vendor YAML"
        )
        out.append(Finding("angle_out_of_range", Level.FAIL, text))
    if m.largest > limits.max_abs_value:
        text = f"{where}: a value of {m.largest:.4g}, the limit is {limits.max_abs_value:g}"
        out.append(Finding("value_out_of_range", Level.FAIL, text))
    if m.quaternion_error > limits.quaternion_norm_tolerance:
        text = f"{where}: a quaternion's norm is off by {m.quaternion_error:.3g}: check its columns and order"
        out.append(Finding("quaternion_norm", Level.FAIL, text))
    if m.backward_steps:
        text = f"{where}: time goes backwards {m.backward_steps} times"
        out.append(Finding("time_backwards", Level.WARN, text))
    if m.messages > 1 and m.repeated_stamps > limits.max_repeated_ratio * m.messages:
        text = f"{where}: {m.repeated_stamps} of {m.messages} messages repeat the stamp before"
        out.append(Finding("repeated_stamps", Level.FAIL, text))
    elif m.repeated_stamps:
        out.append(Finding("repeated_stamps", Level.INFO, f"{where}: {m.repeated_stamps} repeated stamps"))
    if m.max_gap_ns > limits.max_gap_s * 1e9:
        text = f"{where}: a gap of {m.max_gap_ns / 1e9:.3f} s, the limit is {limits.max_gap_s:g} s"
        out.append(Finding("gap", Level.FAIL, text, {"gap_s": f"{m.max_gap_ns / 1e9:.3f}"}))
    if camera and m.messages >= MIN_PICTURES and m.frozen > limits.max_frozen_ratio * (m.messages - 1):
        text = f"{where}: {m.frozen} of {m.messages} pictures equal the one before: the camera was frozen"
        out.append(Finding("frozen_camera", Level.FAIL, text))
    if m.undecodable:
        text = f"{where}: {m.undecodable} of {m.messages} pictures do not decode, or only with damage"
        out.append(Finding("undecodable", Level.FAIL, text, {"pictures": str(m.undecodable)}))
    if camera and m.psnr_db is not None and m.psnr_db < MIN_PSNR_DB:
        text = (
            f"{where}: pictures read back differ from what was written ({m.psnr_db:.1f} dB, expected {MIN_PSNR_DB:g})"
        )
        out.append(Finding("pictures_differ", Level.FAIL, text))
    return out


def _counts(done: Converted, where: str) -> list[Finding]:
    """Everything that was measured going in has to be in the receipt."""
    assert done.receipt is not None  # noqa: S101 - the caller has looked
    written = {t.topic: t.messages for g in done.receipt.groups for t in g.topics}
    dropped = done.receipt.counts.get("dropped_frames", 0)
    out = []
    for measure in done.topics:
        have = written.get(measure.topic, 0)
        if have + dropped < measure.messages:
            text = f"{where}, {measure.topic}: {measure.messages} messages went in, {have} are in the file"
            out.append(Finding("messages_lost", Level.FAIL, text))
    return out


def _against_facts(done: Converted, facts: EpisodeFacts, vendor: VendorSpec, where: str) -> list[Finding]:
    """Everything that the recording holds has to have come out of it."""
    mapped: dict[str, CameraMap | StateMap] = {**(vendor.cameras or {}), **(vendor.states or {})}
    by_topic = {m.topic: m for m in done.topics}
    out = []
    for source in facts.topics:
        spec = mapped.get(source.topic)
        if spec is None or source.messages == 0:
            continue
        have = by_topic[spec.topic].messages if spec.topic in by_topic else 0
        partial = done.counts.get("partial_state_messages", 0)
        if have + partial < source.messages:
            text = f"{where}: {source.messages} messages of {source.topic} in the recording, {have} came out"
            out.append(Finding("messages_lost", Level.FAIL, text))
    return out
