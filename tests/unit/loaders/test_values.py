"""Windows, statistics, transforms, colours and faults: pure parts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinemill.errors import ConfigError, ContractError, CorruptError, NotFoundError, UnavailableError, UsageError
from kinemill.loaders import Normaliser, TooManyMaskedError, TopicStatistics, seconds, steps, yuv420_to_rgb
from kinemill.loaders.faults import Faults, reason_of
from kinemill.loaders.fields import resolve_fields, topic_facts
from kinemill.loaders.quarantine import read_quarantine
from kinemill.loaders.transforms import Brightness, Compose, RandomCrop, Torchvision, sample_rng
from kinemill.loaders.windows import Window, from_delta_timestamps, parse_windows
from kinemill.manifest.statistics import METADATA_KEY, dump_statistics, merge, parse_statistics

# ---- windows


def test_integers_are_steps_and_floats_are_seconds() -> None:
    got = parse_windows({"a": range(3), "b": [-1, 0], "c": [0.0, -0.1], "d": 0, "e": steps(4), "f": np.arange(2)})
    assert got["a"].steps == (0, 1, 2)
    assert got["b"].steps == (-1, 0)
    assert got["c"].offsets_ns == (0, -100_000_000)
    assert got["d"].steps == (0,)
    assert got["e"].steps == (4,)
    assert got["f"].steps == (0, 1)


def test_lerobots_deltas_are_seconds_even_where_they_are_integers() -> None:
    assert from_delta_timestamps({"x": [-1, 0, 1]})["x"].offsets_ns == (-(10**9), 0, 10**9)


def test_tolerances_are_integer_nanoseconds() -> None:
    window = seconds([i / 30 for i in range(3)], tolerance_s=1e-4)
    assert window.offsets_ns == (0, 33_333_333, 66_666_667)
    assert window.tolerance_ns == 100_000


@pytest.mark.parametrize(
    "bad", [lambda: parse_windows({}), lambda: steps([]), Window, lambda: seconds(0.0, tolerance_s=-1.0),
            lambda: parse_windows({"a": ["x"]})]
)  # fmt: skip
def test_windows_that_ask_for_nothing_are_refused(bad) -> None:
    with pytest.raises(UsageError):
        bad()


# ---- fields

TOPICS = (
    '{"v":1,"groups":[{"name":"cameras","topics":[{"topic":"/cam","kind":"video","rate_hz":30,"width":64,"height":48}]},'
    '{"name":"state","topics":[{"topic":"/s","kind":"state","rate_hz":100,"names":["a","b"],"fields":["position","velocity"]},'
    '{"topic":"/text","kind":"text"}]}]}'
)


def fields(windows, **options):
    given: dict = {
        "topics": {}, "resize": {}, "pixels": "rgb", "normalisers": {}, "transforms": {}, "assume": {}, **options
    }  # fmt: skip
    return resolve_fields(parse_windows(windows), topic_facts(TOPICS), **given)


def test_shapes_are_known_before_anything_is_read() -> None:
    cam, state = fields({"/cam": range(3), "/s": range(5)})
    assert cam.shape == (3, 48, 64, 3)
    assert state.shape == (5, 4)
    assert state.tolerance_ns == 5_000_000
    assert fields({"/cam": 0}, pixels="yuv420")[0].shape == (1, 72, 64)
    assert fields({"/cam": 0}, resize={"/cam": (24, 32)})[0].shape == (1, 24, 32, 3)
    assert fields({"/cam": 0}, transforms={"/cam": RandomCrop(8, 16)})[0].shape == (1, 8, 16, 3)
    assert fields({"/new": 0}, assume={"/new": (7,)})[0].shape == (1, 7)
    assert fields({"/new": 0}, assume={"/new": (10, 20, 3)})[0].shape == (1, 10, 20, 3)


@pytest.mark.parametrize(
    ("windows", "options", "error", "match"),
    [
        ({"/camm": 0}, {}, ConfigError, "did you mean '/cam'"),
        ({"/text": 0}, {}, ConfigError, "of kind text"),
        ({"/cam": 0}, {"pixels": "bgr"}, UsageError, "rgb, yuv420, gray"),
        ({"/s": 0}, {"resize": {"/s": (1, 1)}}, UsageError, "is no camera"),
        ({"/cam": 0}, {"resize": {"/cma": (1, 1)}}, UsageError, "did you mean '/cam'"),
        ({"/cam": 0}, {"pixels": "yuv420", "resize": {"/cam": (3, 4)}}, UsageError, "even sizes"),
        ({"/cam": 0}, {"transforms": {"/cam": RandomCrop(99, 9)}}, UsageError, "crop of 99x9"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(windows, options, error, match) -> None:
    with pytest.raises(error, match=match):
        fields(windows, **options)


@pytest.mark.parametrize("text", ["", "[]", '{"groups":[{}]}', '{"groups":[{"name":"x","topics":[{"topic":"a"}]}]}'])
def test_a_topic_table_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CorruptError, match="topic table"):
        topic_facts(text)


# ---- statistics


def test_merged_statistics_are_those_of_the_rows_together() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(i, 1 + i, (100 * (i + 1), 3)) for i in range(3)]
    whole = TopicStatistics.of(np.concatenate(parts))
    got = merge([TopicStatistics.of(part) for part in parts])
    for name in ("mean", "std", "min", "max"):
        assert np.allclose(getattr(got, name), getattr(whole, name)), name
    assert got.count == 600
    assert (got.q01 < got.mean).all()
    weighted = merge([TopicStatistics.of(part) for part in parts], [0.0, 0.0, 1.0])
    assert np.allclose(weighted.mean, parts[2].mean(0))


@settings(deadline=None, max_examples=25)
@given(mode=st.sampled_from(["mean_std", "min_max", "quantile"]), seed=st.integers(0, 100))
def test_normalising_is_undone(mode: str, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(5, 3, (50, 4)).astype(np.float32)
    normaliser = Normaliser.make(TopicStatistics.of(rows), mode)
    assert np.allclose(normaliser.undo(normaliser(rows)), rows, atol=1e-4)
    if mode == "min_max":
        assert abs(normaliser(rows)).max() <= 1 + 1e-5


def test_a_constant_column_becomes_zero_not_infinite() -> None:
    rows = np.ones((10, 2), np.float32)
    assert (Normaliser.make(TopicStatistics.of(rows))(rows) == 0).all()


def test_statistics_travel_in_the_manifests_metadata() -> None:
    told = {"/s": TopicStatistics.of(np.arange(20.0).reshape(10, 2))}
    again = parse_statistics({METADATA_KEY: dump_statistics(told)})
    assert np.array_equal(again["/s"].q99, told["/s"].q99)
    assert parse_statistics({}) == {}
    with pytest.raises(ContractError, match="statistics"):
        parse_statistics({METADATA_KEY: '{"/s": {"count": 1}}'})


# ---- transforms


def test_the_same_sample_gets_the_same_transform_and_others_do_not() -> None:
    image = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    both = Compose((RandomCrop(16, 16), Brightness(0.5)))
    one = both(image, sample_rng(1, 2, 3, "/cam"))
    assert np.array_equal(one, both(image, sample_rng(1, 2, 3, "/cam")))
    assert not np.array_equal(one, both(image, sample_rng(1, 3, 3, "/cam")))
    assert one.shape == (2, 16, 16, 3)


def test_a_torch_transform_leaves_the_callers_generator_alone() -> None:
    image = np.zeros((1, 8, 8, 3), np.uint8)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    noisy = Torchvision(lambda x: (x + torch.randint(0, 9, x.shape)).to(torch.uint8))(image, sample_rng(0, 0, 0, "a"))
    assert noisy.shape == image.shape
    assert noisy.any()
    assert torch.equal(before, torch.random.get_rng_state())


# ---- colours


def test_planes_to_rgb_is_what_ffmpeg_makes_of_them() -> None:
    import av

    rng = np.random.default_rng(0)
    smooth = np.repeat(np.repeat(rng.integers(20, 230, (6, 8), np.uint8), 8, 0), 8, 1)
    planes = np.full((72, 64), 128, np.uint8)
    planes[:48] = smooth
    planes[48:] = rng.integers(90, 160, (24, 64), np.uint8)[:, :1]
    frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
    expected = frame.reformat(format="rgb24").to_ndarray().astype(int)
    got = yuv420_to_rgb(torch.from_numpy(planes)[None])[0].numpy().astype(int)
    assert got.shape == (48, 64, 3)
    assert np.abs(got - expected).mean() < 2
    assert np.abs(got - expected).max() <= 12  # chroma siting at edges


# ---- faults


def test_each_fault_has_a_stable_reason() -> None:
    told = [reason_of(e) for e in (NotFoundError("x"), CorruptError("x"), UnavailableError("x"), ConfigError("x"))]
    assert told == ["not_found", "corrupt", "unavailable", "other"]


def test_the_ceiling_waits_for_enough_samples_and_then_holds() -> None:
    faults = Faults(max_share=0.1, min_samples=20, max_in_a_row=100)
    for _ in range(18):
        faults.good()  # two masked ones of twenty are the ceiling, and not above it
    for _ in range(2):
        faults.mask(CorruptError("x"), source="k", episode_id=None)
    with pytest.raises(TooManyMaskedError, match=r"ceiling 10\.0%; reasons: corrupt 3"):
        faults.mask(CorruptError("x"), source="k", episode_id=None)
    assert faults.masked == {"corrupt": 3}


def test_one_bad_first_sample_stops_nothing_and_is_judged_with_the_tenth() -> None:
    faults = Faults(max_share=0.0, min_samples=10)
    assert faults.mask(CorruptError("x"), source="k", episode_id=None) == "corrupt"
    faults.good(8)
    assert (faults.samples, faults.masked) == (9, {"corrupt": 1})
    with pytest.raises(TooManyMaskedError, match=r"20\.0% of 10 samples"):
        faults.mask(CorruptError("x"), source="k", episode_id=None)


def test_records_are_appended_by_several_processes_whole(tmp_path: Path) -> None:
    spool = tmp_path / "quarantine" / "rank-00000.jsonl"
    pids = []
    for child in range(4):
        pid = os.fork()
        if not pid:
            faults = Faults(spool=spool, max_share=1.0, max_in_a_row=10**9)
            for i in range(50):
                faults.mask(CorruptError("m" * 500), source=f"{child}-{i}", episode_id=None)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    records = read_quarantine(tmp_path)
    assert len({r.source for r in records}) == len(records) == 200
    assert all(r.stage == "loader" and r.code == "corrupt" for r in records)


def test_a_line_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    spool = tmp_path / "quarantine" / "rank-00000.jsonl"
    Faults(spool=spool).mask(CorruptError("x"), source="k", episode_id=None)
    with spool.open("a") as file:
        file.write('{"source": "half')
    assert [r.source for r in read_quarantine(tmp_path)] == ["k"]


def test_a_spool_that_cannot_be_written_is_told_and_does_not_stop_reading(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    faults = Faults(spool=tmp_path / "file" / "x" / "rank.jsonl")
    assert faults.mask(CorruptError("crc differs"), source="k", episode_id=None) == "corrupt"
    assert faults.masked == {"corrupt": 1}
    assert "masked (corrupt): k: crc differs" in caplog.text
    assert "cannot write the quarantine record" in caplog.text
    assert (tmp_path / "file").read_text() == ""


def test_records_of_a_run_in_a_store_are_objects_below_its_prefix() -> None:
    from kinemill.loaders.quarantine import StoreSpool, spool_of
    from kinemill.loaders.stores import use_store
    from kinemill.store.memory import MemoryStore

    # Given a run folder that is a store's prefix
    store = MemoryStore("runs")
    spool = spool_of(use_store(store) + "/", 3)
    assert isinstance(spool, StoreSpool)
    # When samples are masked, one of them twice
    faults = Faults(spool=spool)
    faults.mask(CorruptError("crc differs"), source="episodes/x", episode_id="e")
    faults.mask(CorruptError("crc differs"), source="episodes/x", episode_id="e")
    faults.mask(NotFoundError("gone"), source="episodes/y", episode_id="f")
    # Then there is a record an episode and reason, each an object of the rank
    assert all(meta.key.startswith("quarantine/rank-00003-") for meta in store.list())
    assert [(r.source, r.code) for r in read_quarantine(store.url)] == [
        ("episodes/x", "corrupt"),
        ("episodes/y", "not_found"),
    ]


def test_a_store_that_takes_no_record_does_not_stop_reading(caplog: pytest.LogCaptureFixture) -> None:
    from kinemill.loaders.quarantine import spool_of
    from kinemill.loaders.stores import use_store
    from kinemill.store.memory import MemoryStore

    class Full(MemoryStore):
        def put_if_absent(self, key, data):
            raise UnavailableError("no room")

    faults = Faults(spool=spool_of(use_store(Full("full")), 0))
    faults.mask(CorruptError("crc differs"), source="episodes/x", episode_id="e")
    assert faults.masked == {"corrupt": 1}
    assert "cannot write the quarantine record (no room)" in caplog.text


def test_a_run_folder_that_names_no_store_is_told_at_once() -> None:
    from kinemill.loaders.quarantine import spool_of

    with pytest.raises(ConfigError):
        spool_of("gopher://runs/vla-7", 0)
