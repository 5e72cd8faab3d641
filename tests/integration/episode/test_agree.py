"""`verify` against files that lie under right checksums, against hostile records, and over every byte of a file."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import numpy as np
import pytest
from mcap.writer import IndexType, Writer

from kinemill.contracts.episode import TopicKind
from kinemill.episode import EpisodeWriter, TopicSpec, container, wire
from kinemill.episode.verify import VerifyReport, verify
from support.episode import EPISODE, NS, packets, small_episode, specs, stamp
from support.episode_records import Bytes, Records, joined, records_of, sealed


def check(data: bytes, *, deep: bool = False) -> VerifyReport:
    return verify(Bytes(data), deep=deep)


def first(records: Records, op: int) -> bytearray:
    return next(body for code, body in records if code == op)


def put(code: str, at: int, value: int) -> Callable[[bytearray], None]:
    return lambda body: struct.pack_into("<" + code, body, at, value)


def in_index(old: bytes, new: bytes) -> Callable[[bytearray], None]:
    """Change the JSON of `tg.index`, not its length."""

    def change(body: bytearray) -> None:
        assert len(old) == len(new)
        assert body.count(old) >= 1
        body[:] = body.replace(old, new)

    return change


def test_a_file_that_is_sealed_again_is_the_same() -> None:
    for profile in ("vla", "world"):
        data = small_episode(2, 2, 60, profile)[0]
        assert sealed(records_of(data)) == data
        assert check(data, deep=True).findings == []


@pytest.mark.parametrize(
    ("op", "change", "what"),
    [
        (wire.Op.STATISTICS, put("Q", 0, 7), "statistics say 7 messages"),
        (wire.Op.STATISTICS, put("H", 8, 9), "statistics say 9 schemas"),
        (wire.Op.STATISTICS, put("I", 10, 9), "statistics say 9 channels"),
        (wire.Op.STATISTICS, put("I", 14, 9), "statistics say 9 attachments"),
        (wire.Op.STATISTICS, put("I", 18, 9), "statistics say 9 metadata records"),
        (wire.Op.STATISTICS, put("I", 22, 9), "statistics say 9 chunks"),
        (wire.Op.STATISTICS, put("Q", 26, 1), "statistics say 1.."),
        (wire.Op.STATISTICS, put("Q", 34, NS), "1000000000 ns, the chunks cover"),
        (wire.Op.STATISTICS, put("Q", 48, 3), "statistics and messages per channel differ"),
        (wire.Op.SUMMARY_OFFSET, put("B", 0, 9), "summary offsets and the sections"),
        (wire.Op.SUMMARY_OFFSET, put("Q", 1, 9), "summary offsets and the sections"),
        (wire.Op.SUMMARY_OFFSET, put("Q", 9, 9), "summary offsets and the sections"),
        (wire.Op.ATTACHMENT_INDEX, put("Q", 16, 9), "attachment index and attachments differ"),
        (wire.Op.ATTACHMENT_INDEX, put("Q", 24, 9), "attachment index and attachments differ"),
        (wire.Op.METADATA_INDEX, put("Q", 8, 9), "metadata index and metadata records differ"),
        (wire.Op.CHUNK_INDEX, put("Q", 0, 9), "says other than the chunk"),
        (wire.Op.ATTACHMENT, in_index(b'"t_last_ns":6', b'"t_last_ns":7'), "the chunks cover"),
        (wire.Op.ATTACHMENT, in_index(b'"profile":"vla"', b'"profile":"vlb"'), "of different episodes"),
        (wire.Op.ATTACHMENT, in_index(b"/cam/1", b"/cam/2"), "is not as channel 2"),
        (wire.Op.ATTACHMENT, in_index(b'\\"kind\\":\\"state\\"', b'\\"kind\\":\\"other\\"'), "is not as channel 3"),
    ],
)  # fmt: skip
def test_what_is_told_wrong_under_a_right_checksum_is_found(
    op: int, change: Callable[[bytearray], None], what: str
) -> None:
    # given
    records = records_of(small_episode(2, 2, 60)[0])
    change(first(records, op))
    # when
    report = check(sealed(records))
    # then it alone is found, by name
    assert any(what in f.text for f in report.findings), report.findings
    assert {f.code for f in report.findings} <= {"summary", "tg_index"}


@pytest.mark.parametrize("key", [b'"frames":[', b'"t_first_ns":['])
def test_a_gop_table_that_lies_is_found(key: bytes) -> None:
    # given an episode whose chunks hold several GOPs
    records = records_of(small_episode(1, 0, 250, "world")[0])
    body = first(records, wire.Op.ATTACHMENT)
    at = body.index(key, body.index(b'"gops"')) + len(key)
    body[at] = ord("7") if body[at] != ord("7") else ord("8")
    # when / then
    assert any("GOP" in f.text for f in check(sealed(records), deep=True).findings)


def test_a_gop_that_does_not_start_with_an_idr_is_found_in_depth() -> None:
    # given a GOP table that names the time of a frame inside the GOP
    records = records_of(small_episode(1, 0, 250, "world")[0])
    body = first(records, wire.Op.ATTACHMENT)
    true, inside = str(stamp(120)).encode(), str(stamp(121)).encode()
    table = body.index(b'"gops"')
    body[table:] = body[table:].replace(true, inside)
    # when / then
    assert any(f"no GOP starts at {stamp(121)}" in f.text for f in check(sealed(records), deep=True).findings)


@pytest.mark.parametrize("profile", ["vla", "world"])
def test_a_frame_that_was_lost_before_it_was_recorded_is_found_in_depth(profile: str) -> None:
    """No checksum and no sequence number tells of it, and FFmpeg invents what is not there."""
    # given packets of which one, no IDR, never came
    stream = [p for k, p in enumerate(packets(0, 40, profile)) if k != 17]
    sink = io.BytesIO()
    writer = EpisodeWriter(sink, episode_id=EPISODE, profile=profile, topics=specs(1, 0))
    for t_ns, data, _ in stream:
        writer.packet("/cam/0", t_ns, data)
    writer.close()
    # when / then
    assert check(sink.getvalue()).ok
    (found,) = check(sink.getvalue(), deep=True).findings
    assert f"/cam/0 at {stamp(18)} ns follows 1 frames that are not there" in found.text


def test_two_definitions_of_one_schema_are_found() -> None:
    records = records_of(small_episode(2, 2, 60)[0])
    again = bytearray(first(records, wire.Op.SCHEMA))
    again[-1] ^= 1
    records.insert(2, (wire.Op.SCHEMA, again))
    assert any("schema 1 is defined again" in f.text for f in check(sealed(records)).findings)


@pytest.mark.parametrize("keep", [0, 3, 9])
@pytest.mark.parametrize("own", [True, False], ids=["own", "stock"])
def test_records_that_are_too_short_are_findings(own: bool, keep: int) -> None:
    """Whatever a hostile writer leaves out: the answer is a report."""
    base = small_episode(1, 1, 10)[0] if own else stock(3)
    for number, (op, _) in enumerate(records_of(base)):
        records = records_of(base)
        if len(records[number][1]) <= keep or op in (wire.Op.HEADER, wire.Op.DATA_END):
            continue
        records[number] = (op, records[number][1][:keep])
        short = [b for code, b in records if code in (wire.Op.ATTACHMENT, wire.Op.FOOTER) and len(b) < 20]
        report = check(sealed(records) if not short else joined(records))
        assert not report.ok, (op, keep)


def stock(messages: int, **options: object) -> bytes:
    out = io.BytesIO()
    writer = Writer(out, chunk_size=2000, **options)  # type: ignore[arg-type]  # passed through as given
    writer.start()
    channel = writer.register_channel("/a", "json", writer.register_schema("A", "jsonschema", b"{}"))
    for k in range(messages):
        writer.add_message(channel, k, b"{}", k, k)
    writer.finish()
    return out.getvalue()


@pytest.mark.parametrize(
    "options",
    [{}, {"use_chunking": False}, {"index_types": IndexType.NONE}, {"index_types": IndexType.CHUNK}],
    ids=["whole", "unchunked", "no_index", "no_message_index"],
)
def test_stock_files_of_all_shapes_are_sound(options: dict[str, object]) -> None:
    report = check(stock(300, **options))
    assert (report.findings, report.messages, report.mcap, report.own) == ([], 300, True, False)


def test_what_is_no_mcap_is_not_called_one() -> None:
    report = check(b"a text that is long enough to be a file")
    assert (report.ok, report.mcap) == (False, False)


def test_progress_reaches_the_end_and_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from kinemill.episode import verify as module

    monkeypatch.setattr(module, "_TELL", 10_000)
    data = small_episode(2, 2, 60)[0]
    told: list[tuple[int, int]] = []
    verify(Bytes(data), progress=lambda done, total: told.append((done, total)))
    assert len(told) > 2
    assert told == sorted(told)
    assert {total for _, total in told} == {len(data)}


def tiny(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A file of all kinds of records, padding too, of some KB."""
    monkeypatch.setattr(container, "ALIGN_FROM", 400)
    monkeypatch.setattr(container, "ALIGN_TO", 512)
    sink = io.BytesIO()
    topics = [*specs(1, 1, joints=1), TopicSpec("/task", TopicKind.TEXT)]
    writer = EpisodeWriter(sink, episode_id=EPISODE, topics=topics, metadata={"robot": "arm"})
    for t_ns, data, _ in packets(0, 2):
        writer.packet("/cam/0", t_ns, data)
        writer.rows("/state/0", t_ns, np.zeros(1))
    writer.text("/task", stamp(1), "x")
    writer.attach("a.urdf", "application/xml", b"<r/>")
    writer.close()
    return sink.getvalue()


def places(data: bytes) -> list[int]:
    """Each byte of the file; of long records each seventh of what follows their first 64 bytes."""
    found = list(range(8))
    at = 8
    for _, body in records_of(data):
        end = at + 9 + len(body)
        found += [*range(at, min(at + 64, end)), *range(at + 64, end - 8, 7), *range(max(at + 64, end - 8), end)]
        at = end
    return [*found, *range(at, len(data))]


def test_no_byte_of_a_file_is_outside_all_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding included; which bit turns over goes round."""
    whole = tiny(monkeypatch)
    assert {op for op, _ in records_of(whole)} == {*range(1, 16), 0x80} - {5}
    assert check(whole).ok
    missed = []
    for at in places(whole):
        hurt = bytearray(whole)
        hurt[at] ^= 1 << at % 8
        if check(bytes(hurt)).ok:
            missed.append(at)
    assert missed == []


def test_no_cut_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every border of records, and a byte before and behind it."""
    whole = tiny(monkeypatch)
    borders = [8]
    for _, body in records_of(whole):
        borders.append(borders[-1] + 9 + len(body))
    cuts = {at + by for at in borders for by in (-1, 0, 1, 9)}
    assert [n for n in sorted(cuts) if n < len(whole) and check(whole[:n]).ok] == []
