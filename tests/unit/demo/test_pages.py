"""The demo's pictures and page, from made-up facts."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

from demo.charts import Bar, Message, Piece, bars, layout_picture, loss_curve
from demo.report import EpisodeView, Facts, FileView, page


def drawn(svg: str) -> ET.Element:
    """The picture as XML; raises where it is none."""
    return ET.fromstring(svg)  # noqa: S314 - our own text


def test_the_restart_is_marked_where_it_was() -> None:
    first = [(s, 1.0 / s) for s in range(1, 31)]
    second = [(s, 1.0 / s) for s in range(21, 61)]
    svg = loss_curve([(1, first), (2, second)], killed_at={1: 30})
    assert "rank killed after step 30, attempt 2 goes on from step 20" in svg
    marks = [e for e in drawn(svg).iter("line") if (e.get("class") or "").startswith("mark")]
    at = sorted(float(e.get("x1") or 0) for e in marks)
    # both lie where their steps lie: 20 and 30 of 60
    assert [round((x - 52) / (960 - 52 - 16) * 60) for x in at] == [20, 30]


def test_an_undisturbed_curve_has_no_mark() -> None:
    svg = loss_curve([(1, [(1, 2.0), (2, 1.0)])], killed_at={})
    assert 'class="mark' not in svg


def test_no_step_is_no_picture() -> None:
    assert "<svg" not in loss_curve([], killed_at={})


def test_the_file_is_drawn_to_scale() -> None:
    pieces = [Piece("cameras", 100, 400), Piece("cameras", 500, 300), Piece("state", 800, 200)]
    messages = [Message("/a", 0, 300, True), Message("/a", 0, 100, False)]
    root = drawn(layout_picture(pieces, 1000, messages, [(100, 400)]))
    widths = {e.get("class"): float(e.get("width") or 0) for e in root.iter("rect")}
    assert round(widths["g-cameras"] / widths["g-state"], 2) == 2.0
    # the IDR frame takes three times the room of the other one
    assert 2.9 < widths["t0 idr"] / widths["t0"] < 3.3 or widths["t0"] == 12


def test_the_longest_bar_is_the_largest_value() -> None:
    root = drawn(bars([Bar("a", 1.0, "1"), Bar("b & c", 4.0, "4", strong=True)], title="t"))
    small, large = (float(e.get("width") or 0) for e in root.iter("rect"))
    assert large == 4 * small


class _Balance(HTMLParser):
    """Every tag that is opened is closed."""

    void = frozenset({"meta", "img", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def facts() -> Facts:
    report = {
        "batch": "v/d",
        "recordings": 2,
        "done_before": 0,
        "published": 1,
        "quarantined": [{"source": "<script>alert(1)</script>", "code": "truncated", "message": "a & b"}],
    }
    evaluation = {
        "event": "evaluation",
        "attempt": 2,
        "samples": 64,
        "error": 0.6,
        "mean_error": 1.0,
        "blank_error": 1.1,
        "against_mean": 0.6,
        "blank_against_seeing": 1.83,
    }
    steps = [{"attempt": 1, "step": s, "loss": 1.0} for s in (1, 2)]
    steps += [{"attempt": 2, "step": s, "loss": 0.5} for s in (2, 3)]
    return Facts(
        stages=[("one", 1.0)],
        drops=[{"vendor": "v", "quirks": ["q < r"]}],
        ingests=[{"report": report, "episodes": 1, "bytes": 10}],
        manifest={"package": {"id": "m-1", "rows": 1}, "plan": {"frames": 1200}},
        rows=[*steps, evaluation],
        attempts=[
            {"number": 1, "resume_step": None, "last_step": 2, "outcome": "failed", "cause": "rank 1 ended by SIGKILL"},
            {"number": 2, "resume_step": 1, "last_step": 3, "outcome": "finished", "cause": None},
        ],
        run="/r",
        episodes=[EpisodeView("v", "s", ("q < r",), "/e.mcap", {"/cam": ["data:image/jpeg;base64,AA"]})],
        file=FileView("/e.mcap", 100, [Piece("cameras", 0, 50)], [Message("/cam", 0, 5, True)], [(0, 50)]),
    )


def test_the_page_is_balanced_and_escapes_what_vendors_wrote() -> None:
    text = page(facts())
    parser = _Balance()
    parser.feed(text)
    assert parser.open == []
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "q &lt; r" in text


def test_the_verdict_follows_both_thresholds() -> None:
    good = facts()
    assert good.learned()
    good.rows[-1]["against_mean"] = 0.81
    assert not good.learned()
    good.rows[-1] |= {"against_mean": 0.6, "blank_against_seeing": 1.1}
    assert not good.learned()
    assert not Facts().learned()


def test_an_attempt_that_failed_before_its_first_step_marks_nothing() -> None:
    found = facts()
    found.attempts.append({"number": 3, "resume_step": 3, "last_step": None, "outcome": "failed", "cause": None})
    assert found.killed_at() == {1: 2}
