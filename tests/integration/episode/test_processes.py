"""Readers over fork and spawn, and how much memory they keep."""

from __future__ import annotations

import multiprocessing as mp
import pickle
from pathlib import Path

import numpy as np
import pytest

from kinemill.episode import EpisodeReader, Layout, Window
from kinemill.episode.decode import SHARED
from kinemill.store.opening import open_store
from support.episode import KEY, picture, small_episode, stamp, stored


def right(reader: EpisodeReader, frame: int) -> bool:
    answer = reader.read([Window.at("/cam/0", stamp(frame)), Window.at("/state/0", stamp(frame))])
    errors = [np.abs(answer["/cam/0"][1][0].astype(int) - picture(0, k)).mean() for k in range(60)]
    return int(np.argmin(errors)) == frame


def work(reader: EpisodeReader, results: object) -> None:
    results.put([right(reader, k) for k in (3, 17, 44)])  # type: ignore[attr-defined]  # a queue of any context


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_reader_works_on_in_a_child(method: str, tmp_path: Path) -> None:
    """Handles and decoders inherited over a fork are what breaks others (huggingface/lerobot 2488, 4526)."""
    # given a reader whose decoders are warm, over a store of files
    data, receipt = small_episode(2, 2, 60)
    store = open_store(f"file://{tmp_path}/corpus")
    store.put_if_absent(KEY, data)
    reader = EpisodeReader.open(store, KEY, layout=Layout.from_receipt(receipt))
    assert right(reader, 20)
    assert len(SHARED) > 0
    # when two children and the parent read at once
    context = mp.get_context(method)
    results = context.Queue()
    children = [context.Process(target=work, args=(reader, results)) for _ in range(2)]
    for child in children:
        child.start()
    mine = [right(reader, k) for k in (5, 50)]
    found = [results.get(timeout=300) for _ in children]
    for child in children:
        child.join(timeout=300)
    # then all are right, and all ended
    assert [child.exitcode for child in children] == [0, 0]
    assert found == [[True] * 3] * 2
    assert mine == [True] * 2


def test_a_reader_is_pickled_with_its_layout() -> None:
    data, receipt = small_episode(2, 2, 60)
    reader = EpisodeReader.open(stored(data), KEY, layout=receipt)
    layout = pickle.loads(pickle.dumps(reader.layout))  # noqa: S301 - our own bytes, as a spawned worker gets them
    assert right(EpisodeReader(stored(data), KEY, layout), 11)


def test_ten_thousand_reads_keep_memory_flat() -> None:
    """PyAV-Org/PyAV 317, dmlc/decord 208: buffers that nobody frees."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    data, receipt = small_episode(2, 2, 60)
    reader = EpisodeReader.open(stored(data), KEY, layout=receipt)
    windows = [[Window.at("/cam/0", stamp(k)), Window.at("/cam/1", stamp(k))] for k in range(60)]
    for k in range(300):
        reader.read(windows[k % 60])
    grown = []
    for _ in range(3):  # what leaks does so each time; what else happens in this process does not
        before = resident()
        for k in range(1500):
            reader.read(windows[k % 60])
        grown.append(resident() - before)
        if grown[-1] < 8 << 20:
            break
    assert min(grown) < 8 << 20, grown
    assert len(SHARED) <= 16


def test_threads_share_a_reader() -> None:
    from concurrent.futures import ThreadPoolExecutor

    data, receipt = small_episode(2, 2, 60)
    reader = EpisodeReader.open(stored(data), KEY, layout=receipt)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda k: right(reader, k), range(0, 60, 3)))


def test_pictures_go_into_the_caller_s_array() -> None:
    data, receipt = small_episode(2, 2, 60)
    reader = EpisodeReader.open(stored(data), KEY, layout=receipt)
    out = np.zeros((3, 48, 64, 3), np.uint8)
    window = Window.at("/cam/0", [stamp(40), stamp(3), stamp(40)])
    answer = reader.read([window], out={"/cam/0": out})
    assert answer["/cam/0"][1] is out
    np.testing.assert_array_equal(out, reader.read([window])["/cam/0"][1])
    np.testing.assert_array_equal(out[0], out[2])


def test_plan_and_decode_are_the_halves_of_read() -> None:
    data, receipt = small_episode(2, 2, 60)
    reader = EpisodeReader.open(stored(data), KEY, layout=receipt)
    windows = [Window.at("/cam/0", stamp(33)), Window.between("/state/1", stamp(30), stamp(40))]
    plan = reader.plan(windows)
    assert len(plan.ranges) == 2
    blobs = [data[start : start + length] for start, length in plan.ranges]
    halves, whole = reader.decode(plan, blobs), reader.read(windows)
    for key in whole:
        np.testing.assert_array_equal(halves[key][0], whole[key][0])
        np.testing.assert_array_equal(halves[key][1], whole[key][1])


def test_parts_of_a_group_that_lie_far_apart_are_two_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    from kinemill.episode import reader as module

    data, receipt = small_episode(2, 2, 60)
    reader = EpisodeReader.open(stored(data), KEY, layout=receipt)
    windows = [Window.at("/cam/0", [stamp(0), stamp(59)])]
    assert len(reader.plan(windows).ranges) == 1
    monkeypatch.setattr(module, "MERGE_GAP", 1000)
    assert len(reader.plan(windows).ranges) == 2
    assert reader.read(windows)["/cam/0"][0].tolist() == [stamp(0), stamp(59)]
