"""The catalog's calls: batches, races, steps, hostile text."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest
import sqlalchemy as sa

from kinemill.contracts import EpisodeState, QuarantineRecord, RunStatus, StepResult, StepStatus
from kinemill.errors import ConflictError, CorruptError, DataError, KinemillError, NotFoundError, StateError
from kinemill.pipelines.catalog import Catalog, LabelRecord, ManifestRecord, Outcome, QualityRecord, uuid7
from support.catalog import card_of, pair

DIGEST = "0" * 64


class Statements:
    """Counts what goes to the server."""

    def __init__(self, catalog: Catalog) -> None:
        self.count = 0
        sa.event.listen(catalog.engine, "before_cursor_execute", self._one)

    def _one(self, *_: object) -> None:
        self.count += 1


def together(count: int, body: Callable[[int], object]) -> tuple[list[object], list[BaseException]]:
    """`body(i)` in `count` threads at once: results and errors."""
    gate = threading.Barrier(count)
    results: list[object] = []
    errors: list[BaseException] = []

    def one(i: int) -> None:
        gate.wait(120)
        try:
            results.append(body(i))
        except KinemillError as exc:
            errors.append(exc)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, errors


# ---- registering


def test_a_batch_is_a_handful_of_statements_whatever_its_size(catalog: Catalog) -> None:
    small, large = [pair() for _ in range(5)], [pair() for _ in range(300)]
    counted = Statements(catalog)
    catalog.register_episodes(small)
    first, counted.count = counted.count, 0
    done = catalog.register_episodes(large, batch="b")
    assert counted.count == first <= 10
    assert {one.outcome for one in done} == {Outcome.NEW}
    assert [one.object_key for one in done] == [rendition.key for _, rendition in large]
    counted.count = 0
    assert {one.outcome for one in catalog.register_episodes(large)} == {Outcome.SAME}
    assert counted.count <= 4
    assert catalog.counts()["ingested"] == 305


def test_what_went_in_comes_out(one: Catalog) -> None:
    delivery = one.register_delivery("acme", "drop 1", files=3, size_bytes=10, sha256="ab" * 32, details={"note": "ü"})
    made = pair(site="lab 2", split="val", instruction="räum auf", recorded_at_ns=1_790_000_000_123_456_000)
    blind = pair(cameras=0)
    one.register_episodes([made, blind], delivery_id=delivery, batch="b1")
    row = one.episode(made[0].episode_id)
    assert replace(row.card, frames=None, fps=None) == made[0]
    assert (row.frames, row.fps, row.batch, row.delivery) == (120, 30.0, "b1", "drop 1")
    assert row.duration_ns == made[1].receipt.t_last_ns - made[1].receipt.t_first_ns
    assert one.renditions([made[0].episode_id]) == [made[1]]
    assert (one.episode(blind[0].episode_id).frames, one.episode(blind[0].episode_id).fps) == (0, 0.0)
    assert one.find("acme", [made[0].vendor_key, "unknown"]) == {made[0].vendor_key: made[0].episode_id}
    ids = sorted([made[0].episode_id, blind[0].episode_id])
    assert [r.card.episode_id for r in one.episodes(batch="b1")] == ids
    assert [r.card.episode_id for r in one.episodes(after=ids[0])] == ids[1:]
    assert one.episodes(state=EpisodeState.PUBLISHED) == []
    with pytest.raises(NotFoundError):
        one.episode(uuid7())


def test_corrections_and_further_profiles(one: Catalog) -> None:
    first = pair()
    episode = first[0].episode_id
    one.register_episodes([first])
    corrected, world = pair(episode, seed=2), pair(episode, profile="world")
    done = one.register_episodes([corrected, world])
    assert [d.outcome for d in done] == [Outcome.CORRECTED, Outcome.ADDED]
    assert [r.key for r in one.renditions([episode])] == [corrected[1].key, world[1].key]
    assert len(one.renditions([episode], all_versions=True)) == 3
    assert one.register_episodes([first])[0].outcome is Outcome.SAME, "an old object is known, and stays superseded"
    assert [r.key for r in one.renditions([episode])] == [corrected[1].key, world[1].key]


def test_duplicates_name_the_episode_that_was_first(one: Catalog) -> None:
    first = pair()
    one.register_episodes([first])
    again = pair(vendor_key=first[0].vendor_key)
    (done,) = one.register_episodes([again])
    assert (done.outcome, done.episode_id) == (Outcome.DUPLICATE, first[0].episode_id)
    twins = pair(vendor_key="twin"), pair(vendor_key="twin")
    done_both = one.register_episodes(list(twins))
    assert [d.outcome for d in done_both] == [Outcome.NEW, Outcome.DUPLICATE]
    assert {d.episode_id for d in done_both} == {twins[0][0].episode_id}
    assert one.counts()["rendition"] == 2


def test_contradictions_are_refused_and_nothing_is_written(one: Catalog) -> None:
    good = pair()
    card, rendition = pair()
    other = uuid7()
    wrong = [
        (replace(card, episode_id=other), rendition),
        (replace(card, episode_id="no uuid"), rendition),
        (card, replace(rendition, key=rendition.key.replace("vla", "world"))),
        (card, replace(rendition, receipt=replace(rendition.receipt, sha256="ff" * 32))),
        (card, replace(rendition, receipt=replace(rendition.receipt, t_last_ns=rendition.receipt.t_first_ns))),
        (card, replace(rendition, receipt=replace(rendition.receipt, size_bytes=5))),
        (replace(card, vendor=""), rendition),
        (replace(card, vendor_key="k" * 601), rendition),
        (replace(card, frames=-1), rendition),
    ]
    for bad in wrong:
        with pytest.raises(DataError):
            one.register_episodes([good, bad])
    with pytest.raises(DataError, match="twice"):
        one.register_episodes([good, good])
    assert one.counts()["rendition"] == 0
    one.register_episodes([good])
    with pytest.raises(DataError, match="in the catalog, not"):
        one.register_episodes([pair(good[0].episode_id, seed=3, vendor="other")])
    with pytest.raises(NotFoundError, match="no rendition has the key"):
        one.mark_verified({"episodes/unknown": "e"})


def test_two_deliveries_racing_for_the_same_episodes(catalog: Catalog) -> None:
    keys = [f"race-{i}" for i in range(40)]

    def deliver(i: int) -> list[Outcome]:
        pairs = [pair(vendor_key=key) for key in (keys if i % 2 else reversed(keys))]
        done = catalog.register_episodes(pairs, batch=f"racer-{i}")
        return [one.outcome for one in done]

    results, errors = together(6, deliver)
    assert errors == []
    outcomes = [outcome for result in results for outcome in result]  # type: ignore[attr-defined]
    assert outcomes.count(Outcome.NEW) == 40
    assert outcomes.count(Outcome.DUPLICATE) == 200
    assert catalog.counts()["ingested"] == 40
    assert catalog.counts()["rendition"] == 40


def test_a_delivery_never_changes(one: Catalog) -> None:
    number = one.register_delivery("acme", "d", sha256="ab" * 32)
    assert one.register_delivery("acme", "d", sha256="ab" * 32) == number
    assert one.register_delivery("acme", "d") == number
    assert one.register_delivery("other", "d") != number
    with pytest.raises(ConflictError, match="never changes"):
        one.register_delivery("acme", "d", sha256="cd" * 32)


# ---- hostile text


NASTY = [
    "'; drop table kinemill.episode; --",
    '"quoted" \\ back\\\\slash',
    "%s %(x)s {0} ${x} :name",
    "\x1b[2J\x1b]0;title\x07",
    "line\r\nbreak\ttab",
    "\u202eright to left\u202c \u200b\ufeff",
    "\U0001d518\U0001d52b \U0001f469\u200d\U0001f467 e\u0301",
    "NULL",
    "{a,b,NULL}",
    '{"json": "\\u0000"}',
    " ",
]


@pytest.mark.parametrize("text", NASTY)
def test_hostile_text_in_every_column_comes_back_as_it_went(one: Catalog, text: str) -> None:
    delivery = one.register_delivery(text, text, source_url=text, details={text: text})
    made = pair(
        vendor=text, vendor_key=text, robot=text, task=text, instruction=text, site=text, split=text, language=text
    )
    one.register_episodes([made], delivery_id=delivery, batch=text)
    episode = made[0].episode_id
    one.record_quality([QualityRecord(episode, text, 1, passed=True, message=text, evidence={text: text})])
    one.record_labels([LabelRecord(episode, text, text, author=text)])
    one.record_quarantine([QuarantineRecord(text, text, text, text, batch=text, evidence={text: text})])
    one.open_run(text, plan={text: text})
    one.record_step(StepResult(text, text, 1, StepStatus.OK, DIGEST, output_digest=text, messages=(text,)))
    one.record_manifest(
        ManifestRecord(text, text, DIGEST, DIGEST, 1, 1, 1, 1, 1.0, creator=text, details={text: text}), [episode]
    )
    row = one.episode(episode)
    assert replace(row.card, frames=None, fps=None) == made[0]
    assert (row.batch, row.delivery) == (text, text)
    (aside,) = one.quarantined(batch=text)
    assert (aside.source, aside.code, aside.message, aside.evidence) == (text, text, text, {text: text})
    assert one.steps(text)[0].messages == (text,)
    assert one.manifests_of(episode) == [text]
    assert one.counts()["ingested"] == 1, "the table is still there"


@pytest.mark.parametrize("text", ["nul \0 inside", "half a pair \ud800"])
def test_text_that_is_none_is_refused_in_every_column(one: Catalog, text: str) -> None:
    episode = one.register_episodes([pair()])[0].episode_id
    calls: list[Callable[[], object]] = [
        lambda: one.register_delivery(text, "d"),
        lambda: one.register_delivery("v", text),
        lambda: one.register_delivery("v", "d", source_url=text),
        lambda: one.register_delivery("v", "d", details={"a": [text]}),
        lambda: one.record_quality([QualityRecord(episode, text, 1, passed=True)]),
        lambda: one.record_quality([QualityRecord(episode, "c", 1, passed=True, message=text)]),
        lambda: one.record_quality([QualityRecord(episode, "c", 1, passed=True, evidence={text: 1})]),
        lambda: one.record_labels([LabelRecord(episode, text, "l")]),
        lambda: one.record_labels([LabelRecord(episode, "s", text)]),
        lambda: one.record_quarantine([QuarantineRecord(text, "s", "c", "m")]),
        lambda: one.record_quarantine([QuarantineRecord("s", "s", "c", "m", evidence={"a": text})]),
        lambda: one.open_run(text),
        lambda: one.record_step(StepResult("b", "s", 1, StepStatus.OK, DIGEST, messages=(text,))),
    ]
    calls += [
        lambda name=name: one.register_episodes([pair(**{name: text})])  # type: ignore[misc]
        for name in ("vendor", "vendor_key", "robot", "task", "instruction", "language", "split", "site")
    ]
    for call in calls:
        with pytest.raises(DataError):
            call()


# ---- read back


def test_an_object_that_changed_under_its_key_is_not_marked_verified(
    one: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    # given three objects, one of which was registered without an etag
    card, rendition = pair()
    others = [pair(), pair()]
    one.register_episodes([(card, replace(rendition, etag=None)), *others])
    keys = [rendition.key, *(made[1].key for made in others)]

    def etags() -> list[str | None]:
        ids = [card.episode_id, *(made[0].episode_id for made in others)]
        found = {r.key: r.etag for r in one.renditions(ids)}
        return [found[key] for key in keys]

    # when one of them has another etag than it was recorded with, nothing is marked
    with pytest.raises(ConflictError, match=rf"{keys[2]}: recorded with etag e1, now e2 \(1 in all\)"):
        one.mark_verified(dict(zip(keys, ("e0", "e1", "e2"), strict=True)))
    assert etags() == [None, "e1", "e1"]
    assert verified(one) == 0
    # then the same etag, or the first one, is fine, and again
    for _ in range(2):
        assert one.mark_verified(dict(zip(keys, ("e0", "e1", "e1"), strict=True))) == 3
    assert etags() == ["e0", "e1", "e1"]
    assert verified(one) == 3
    with pytest.raises(ConflictError):
        one.mark_verified({keys[0]: "e2"})
    # and a corpus that was copied to another store takes its etags, and says so
    assert one.mark_verified({keys[0]: "other-7"}, moved=True) == 1
    assert etags() == ["other-7", "e1", "e1"]
    assert f"{keys[0]}: recorded with etag e0, now other-7" in caplog.text
    with pytest.raises(CorruptError, match="5 bytes in the store"):
        one.mark_verified({keys[0]: "other-8"}, sizes={keys[0]: 5}, moved=True)
    assert etags()[0] == "other-7"


def verified(catalog: Catalog) -> int:
    with catalog.transaction("counting") as connection:
        text = "select count(*) from kinemill.rendition where verified_at is not null"
        return int(connection.execute(sa.text(text)).scalar_one())


# ---- quality, labels, quarantine


def test_quality_is_replaced_per_version_and_bound_to_its_object(one: Catalog) -> None:
    made = pair()
    episode = made[0].episode_id
    one.register_episodes([made], quality=[QualityRecord(episode, "blur", 1, passed=True, score=0.5, critical=False)])
    one.record_quality([QualityRecord(episode, "blur", 1, passed=False, score=0.1, critical=False)])
    one.record_quality([QualityRecord(episode, "blur", 1, passed=True, object_key=made[1].key)])
    assert one.counts()["quality_result"] == 2
    with pytest.raises(NotFoundError, match="name an object"):
        one.record_quality([QualityRecord(episode, "blur", 1, passed=True, object_key="other")])
    with pytest.raises(DataError, match="twice"):
        one.record_quality([QualityRecord(episode, "a", 1, passed=True), QualityRecord(episode, "a", 1, passed=False)])
    with pytest.raises(DataError):
        one.record_quality([QualityRecord(episode, "a", 1, passed=True, score=float("nan"))])
    with pytest.raises(DataError):
        one.record_quality([QualityRecord(uuid7(), "a", 1, passed=True)])


def test_every_change_of_an_episode_is_a_new_version(one: Catalog) -> None:
    made = pair()
    episode = made[0].episode_id
    one.register_episodes([made], quality=[QualityRecord(episode, "a", 1, passed=True)])
    assert one.episode(episode).row_version == 1, "all of one transaction is one version"
    changes: list[Callable[[], object]] = [
        lambda: one.record_labels([LabelRecord(episode, "s", "l")]),
        lambda: one.retract_labels([LabelRecord(episode, "s", "l")]),
        lambda: one.record_quality([QualityRecord(episode, "b", 1, passed=True)]),
        lambda: one.mark_verified({made[1].key: "e1"}, sizes={made[1].key: made[1].receipt.size_bytes}),
        lambda: one.register_episodes([pair(episode, profile="world")]),
        lambda: one.set_state([episode], EpisodeState.VALIDATED),
    ]
    for number, change in enumerate(changes, 2):
        change()
        assert one.episode(episode).row_version == number
    with one.transaction("counting the outbox") as connection:
        assert connection.execute(sa.text("select count(*) from kinemill.outbox")).scalar_one() == 7


def test_the_same_finding_twice_is_one_row(one: Catalog) -> None:
    found = QuarantineRecord("file.bag", "pre_gate", "truncated", "ends early", batch="b")
    assert one.record_quarantine([found]) == 1
    assert one.record_quarantine([found, replace(found, code="no_action")]) == 1
    assert [q.code for q in one.quarantined()] == ["truncated", "no_action"]
    assert one.record_quarantine([]) == 0


# ---- steps and runs


def test_a_step_is_claimed_by_one_and_done_once(catalog: Catalog) -> None:
    results, errors = together(8, lambda i: catalog.claim_step("b", "convert", 2, DIGEST, by=f"w{i}"))
    assert errors == []
    (held,) = [claim for claim in results if claim is not None]
    assert catalog.step_done("b", "convert", 2, DIGEST) is None
    result = StepResult("b", "convert", 2, StepStatus.OK, DIGEST, "f" * 64, 1.5, {"episodes": 3}, ("fine",))
    catalog.renew_step(held)  # type: ignore[arg-type]
    catalog.finish_step(held, result)  # type: ignore[arg-type]
    assert catalog.step_done("b", "convert", 2, DIGEST) == result
    assert catalog.claim_step("b", "convert", 2, DIGEST) is None
    assert catalog.step_done("b", "convert", 3, DIGEST) is None, "another version is another step"
    assert catalog.step_done("b", "convert", 2, "1" * 64) is None, "another input too"
    assert not catalog.record_step(result), "done is done"
    assert catalog.steps("b") == [result]


def test_a_lost_worker_is_replaced_and_its_late_result_does_not_count(one: Catalog) -> None:
    lost = one.claim_step("b", "s", 1, DIGEST, by="lost", lease_s=0)
    assert lost is not None
    taken = one.claim_step("b", "s", 1, DIGEST, by="next")
    assert taken is not None
    assert taken.attempt == 2
    late = StepResult("b", "s", 1, StepStatus.OK, DIGEST, "a" * 64)
    with pytest.raises(ConflictError, match="does not count"):
        one.finish_step(lost, late)
    with pytest.raises(ConflictError, match="taken it over"):
        one.renew_step(lost)
    with pytest.raises(DataError, match="another step"):
        one.finish_step(taken, replace(late, step="t"))
    one.finish_step(taken, replace(late, status=StepStatus.FAILED))
    again = one.claim_step("b", "s", 1, DIGEST)
    assert again is not None, "what failed may be tried again"
    assert again.attempt == 3


def test_a_run_ends_as_its_steps_say(one: Catalog) -> None:
    (made,) = one.register_episodes([pair()], batch="b")
    assert one.run_status("b") is None
    one.open_run("b", plan={"chunks": 3})
    one.open_run("b")
    assert one.run_status("b") is RunStatus.RUNNING
    one.record_step(StepResult("b", "convert", 1, StepStatus.OK, DIGEST))
    one.record_step(StepResult("b", "preview", 1, StepStatus.FAILED, DIGEST))
    assert one.close_run("b", non_critical=["preview"]) is RunStatus.DEGRADED
    assert one.episode(made.episode_id).degraded_steps == ("preview",)
    assert one.close_run("b") is RunStatus.FAILED
    one.open_run("b")
    one.record_step(StepResult("b", "preview", 1, StepStatus.OK, DIGEST))
    assert one.close_run("b") is RunStatus.SUCCESS
    with pytest.raises(NotFoundError):
        one.close_run("unknown")
    with one.transaction("reading the plan") as connection:
        assert connection.execute(sa.text("select plan from kinemill.run")).scalar_one() == {"chunks": 3}


# ---- manifests


def test_a_manifest_knows_its_episodes_and_what_was_withdrawn_since(one: Catalog) -> None:
    pairs = [pair() for _ in range(5)]
    ids = [card.episode_id for card, _ in pairs]
    one.register_episodes(pairs)
    manifest = ManifestRecord("m1", "manifests/m1", "aa" * 32, "bb" * 32, 7, 1, 5, 100, 2.0, details={"spec": "x"})
    assert one.record_manifest(manifest, [*ids, uuid.UUID(ids[0]).bytes])
    assert not one.record_manifest(manifest, ids), "recorded before"
    with pytest.raises(ConflictError, match="other content"):
        one.record_manifest(replace(manifest, sha256="cc" * 32), ids)
    with pytest.raises(DataError):
        one.record_manifest(replace(manifest, id="m2", object_key="manifests/m2"), [uuid7()])
    assert one.manifests_of(ids[0]) == ["m1"]
    assert one.withdrawn_in("m1") == {}
    one.set_state(ids[:1], EpisodeState.QUARANTINED)
    one.set_state(ids[:1], EpisodeState.RETIRED)
    assert one.withdrawn_in("m1") == {ids[0]: "retired"}
    with pytest.raises(StateError):
        one.set_state(ids[:1], EpisodeState.INGESTED)


def test_cards_travel_in_files() -> None:
    card = card_of(uuid7(), site="s", frames=5, fps=29.97)
    found = type(card).from_metadata(card.episode_id, card.as_metadata())
    assert found == card
    with pytest.raises(DataError, match="names no vendor"):
        type(card).from_metadata(card.episode_id, {"robot": "r"})
    with pytest.raises(DataError, match="is no number"):
        type(card).from_metadata(card.episode_id, {**card.as_metadata(), "frames": "many"})
