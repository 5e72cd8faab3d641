"""Wrong states are impossible: each is tried by plain SQL, past the API, and refused by the database."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from kinemill.contracts import EPISODE_TRANSITIONS, EpisodeState, may_follow
from kinemill.errors import ConflictError, DataError, KinemillError, StateError
from kinemill.pipelines.catalog import Catalog, QualityRecord
from kinemill.pipelines.catalog.database import translated
from support.catalog import pair


@pytest.fixture
def episode(catalog: Catalog) -> str:
    """One episode, ingested."""
    return catalog.register_episodes([pair()])[0].episode_id


def sqlstate(catalog: Catalog, *statements: str, **values: object) -> str | None:
    """Of one transaction of these statements; None where it commits."""
    try:
        with catalog.engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement), values)
    except DBAPIError as exc:
        return str(getattr(exc.orig, "sqlstate", ""))
    return None


def publish(catalog: Catalog, episode: str) -> None:
    catalog.mark_verified({r.key: r.etag or "" for r in catalog.renditions([episode])})
    catalog.record_quality([QualityRecord(episode, "post", 1, passed=True)])
    catalog.set_state([episode], EpisodeState.VALIDATED)
    catalog.set_state([episode], EpisodeState.PUBLISHED)


EPISODE = "id, vendor_id, vendor_key, robot_id, task_id, t_first_ns, duration_ns, frames, fps"
REFUSED = {
    "vendor_key changes": ("update kinemill.episode set vendor_key = 'x'", "KM002"),
    "id changes": ("update kinemill.episode set id = gen_random_uuid()", "KM002"),
    "created_at changes": ("update kinemill.episode set created_at = now()", "KM002"),
    "no duration": ("update kinemill.episode set duration_ns = 0", "23514"),
    "negative frames": ("update kinemill.episode set frames = -1", "23514"),
    "frames without rate": ("update kinemill.episode set fps = 0", "23514"),
    "rate is no number": ("update kinemill.episode set fps = 'NaN'", "23514"),
    "ends before it begins": ("update kinemill.episode set ended_at = recorded_at - interval '1 s'", "23514"),
    "unknown state": ("update kinemill.episode set state = 'lost'", "KM001"),
    "empty split": ("update kinemill.episode set split = ''", "23514"),
    "unknown vendor": (
        (f"insert into kinemill.episode ({EPISODE}) values (gen_random_uuid(), 99999, 'k', 1, 1, 0, 1, 0, 0)"),  # noqa: S608 - a constant
        "23503",
    ),
    "born published": (
        (
            f"insert into kinemill.episode ({EPISODE}, state)"  # noqa: S608 - a constant
            " select gen_random_uuid(), vendor_id, 'k', robot_id, task_id, 0, 1, 0, 0, 'published'"
            " from kinemill.episode"
        ),
        "KM001",
    ),
    "same vendor key": (
        (
            f"insert into kinemill.episode ({EPISODE})"  # noqa: S608 - a constant
            " select gen_random_uuid(), vendor_id, vendor_key, robot_id, task_id, 0, 1, 0, 0 from kinemill.episode"
        ),
        "23505",
    ),
    "purged and not retired": ("update kinemill.episode set purged_at = now()", "23514"),
    "episode deleted": ("delete from kinemill.episode", "KM004"),
    "all truncated": ("truncate kinemill.episode cascade", "KM004"),
    "key changes": ("update kinemill.rendition set object_key = object_key || 'x'", "KM002"),
    "content changes": ("update kinemill.rendition set sha256 = sha256('x')", "KM002"),
    "size changes": ("update kinemill.rendition set size_bytes = size_bytes + 1", "KM002"),
    "verified without etag": ("update kinemill.rendition set verified_at = now(), etag = null", "23514"),
    "superseded comes back": (
        "update kinemill.rendition set current = false; update kinemill.rendition set current = true",
        "KM002",
    ),
    "rendition deleted": ("delete from kinemill.rendition", "KM004"),
    "key that is not its content": (
        (
            "insert into kinemill.rendition (episode_id, profile, object_key, sha256, size_bytes, topic_set_id, layout)"
            " select episode_id, 'world', 'episodes/00/x/world-000000000000.mcap', sha256('y'), 5, topic_set_id, layout"
            " from kinemill.rendition"
        ),
        "23514",
    ),
    "hash of another length": (
        (
            "insert into kinemill.rendition (episode_id, profile, object_key, sha256, size_bytes, topic_set_id, layout)"
            " select episode_id, 'world', 'k', 'short', 5, topic_set_id, layout from kinemill.rendition"
        ),
        "23514",
    ),
    "two current of one profile": (
        (
            "insert into kinemill.rendition (episode_id, profile, object_key, sha256, size_bytes, topic_set_id, layout)"
            " select episode_id, profile, 'episodes/' || right(episode_id::text, 2) || '/' || episode_id || '/'"
            " || profile || '-' || left(encode(sha256('z'), 'hex'), 12) || '.mcap', sha256('z'), 5, topic_set_id,"
            " layout from kinemill.rendition"
        ),
        "23505",
    ),
    "receipt changes": ("update kinemill.rendition_receipt set receipt = ''", "KM002"),
    "group behind the file": (
        (
            "insert into kinemill.episode_group select rendition_id, size_bytes, 'late',"
            " int8range(size_bytes - 1, size_bytes + 1), 1, 0, 1 from kinemill.episode_group limit 1"
        ),
        "23514",
    ),
    "group before the file": (
        (
            "insert into kinemill.episode_group select rendition_id, size_bytes, 'early', int8range(-5, 3), 1, 0, 1"
            " from kinemill.episode_group limit 1"
        ),
        "23514",
    ),
    "empty group": (
        (
            "insert into kinemill.episode_group select rendition_id, size_bytes, 'none', int8range(5, 5), 1, 0, 1"
            " from kinemill.episode_group limit 1"
        ),
        "23514",
    ),
    "endless group": (
        (
            "insert into kinemill.episode_group select rendition_id, size_bytes, 'inf', int8range(5, null), 1, 0, 1"
            " from kinemill.episode_group limit 1"
        ),
        "23514",
    ),
    "overlapping groups": (
        (
            "insert into kinemill.episode_group select rendition_id, size_bytes, 'over',"
            " int8range(lower(byte_range) + 1, lower(byte_range) + 2), 1, 0, 1 from kinemill.episode_group limit 1"
        ),
        "23P01",
    ),
    "group of another file size": (
        (
            "insert into kinemill.episode_group select rendition_id, size_bytes + 1, 'size', int8range(1, 2), 1, 0, 1"
            " from kinemill.episode_group limit 1"
        ),
        "23503",
    ),
    "group moves": ("update kinemill.episode_group set byte_range = int8range(0, 5)", "KM002"),
    "manifest of an unknown episode": (
        (
            "insert into kinemill.manifest"
            " (id, object_key, spec_sha256, sha256, snapshot_id, seed, row_count, size_bytes, hours)"
            " values ('m', 'k', sha256('a'), sha256('b'), 1, 1, 1, 1, 1);"
            " insert into kinemill.manifest_use select number, gen_random_uuid() from kinemill.manifest"
        ),
        "23503",
    ),
    "audit changes": (
        (
            "insert into kinemill.audit (actor, action, subject) values ('a', 'b', 'c');"
            " update kinemill.audit set actor = 'x'"
        ),
        "KM002",
    ),
    "topic table of another hash": (
        "insert into kinemill.topic_set (sha256, topics) values (sha256('a'), 'b')",
        "23514",
    ),
    "score is no number": (
        (
            "insert into kinemill.label (episode_id, label_set, label, score)"
            " select id, 's', 'l', 'NaN' from kinemill.episode"
        ),
        "23514",
    ),
    "step result without end": (
        (
            "insert into kinemill.run_step (batch, step, step_version, input_digest, state, claim_token)"
            " values ('b', 's', 1, repeat('0', 64), 'ok', gen_random_uuid())"
        ),
        "23514",
    ),
    "check of another episode's object": (
        (
            "insert into kinemill.episode (id, vendor_id, vendor_key, robot_id, task_id, t_first_ns, duration_ns,"
            " frames, fps) select gen_random_uuid(), vendor_id, 'other', robot_id, task_id, 0, 1, 0, 0"
            " from kinemill.episode;"
            " insert into kinemill.quality_result"
            " (episode_id, rendition_id, check_name, check_version, critical, passed)"
            " select e.id, r.id, 'post', 1, true, true from kinemill.episode e, kinemill.rendition r"
            " where e.vendor_key = 'other'"
        ),
        "23503",
    ),
    "check result moves": (
        (
            "insert into kinemill.quality_result (episode_id, check_name, check_version, critical, passed)"
            " select id, 'post', 1, true, true from kinemill.episode;"
            " update kinemill.quality_result set check_name = 'pre'"
        ),
        "KM002",
    ),
    "label moves": (
        (
            "insert into kinemill.label (episode_id, label_set, label) select id, 's', 'l' from kinemill.episode;"
            " update kinemill.label set episode_id = gen_random_uuid()"
        ),
        "KM002",
    ),
    "layout changes": ("update kinemill.rendition set layout = ''", "KM002"),
    "topic table changes": ("update kinemill.topic_set set topics = '[]', sha256 = sha256('[]')", "KM002"),
    "delivery changes": (
        (
            "insert into kinemill.delivery (vendor_id, name) select id, 'd' from kinemill.vendor;"
            " update kinemill.delivery set sha256 = sha256('x')"
        ),
        "KM002",
    ),
    "purge of another reason": (
        (
            "insert into kinemill.purge (episode_id, reason, actor, objects, manifests)"
            " select id, 'r', 'a', '{}', '{}' from kinemill.episode;"
            " update kinemill.purge set reason = 'none'"
        ),
        "KM002",
    ),
    "finished step is undone": (
        (
            "insert into kinemill.run_step (batch, step, step_version, input_digest, state, claim_token, finished_at)"
            " values ('b', 's', 1, repeat('0', 64), 'ok', gen_random_uuid(), now());"
            " update kinemill.run_step set state = 'failed'"
        ),
        "KM002",
    ),
    "step forgotten": (
        (
            "insert into kinemill.run_step (batch, step, step_version, input_digest, state, claim_token, finished_at)"
            " values ('b', 's', 1, repeat('0', 64), 'failed', gen_random_uuid(), now());"
            " delete from kinemill.run_step"
        ),
        "KM004",
    ),
    "run forgotten": ("insert into kinemill.run (batch) values ('b'); delete from kinemill.run", "KM004"),
    "finding forgotten": (
        (
            "insert into kinemill.quarantine (source, stage, code, message) values ('s', 't', 'c', 'm');"
            " delete from kinemill.quarantine"
        ),
        "KM004",
    ),
    "another identity": ("update kinemill.identity set id = gen_random_uuid()", "KM002"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_it_is_refused(catalog: Catalog, episode: str, wrong: str) -> None:
    statements, state = REFUSED[wrong]
    assert episode
    assert sqlstate(catalog, *statements.split("; ")) == state


def test_every_move_of_the_state_machine_and_no_other(catalog: Catalog) -> None:
    ways = _ways()
    assert set(ways) == set(EpisodeState)
    for start, way in ways.items():
        for end in EpisodeState:
            if start is end:
                continue
            (made,) = catalog.register_episodes([pair()], verified=True)
            catalog.record_quality([QualityRecord(made.episode_id, "post", 1, passed=True)])
            for step in way:
                catalog.set_state([made.episode_id], step)
            if may_follow(start, end):
                catalog.set_state([made.episode_id], end)
                assert catalog.episode(made.episode_id).state is end
            else:
                with pytest.raises(StateError, match=f"{start.value} may not become {end.value}"):
                    catalog.set_state([made.episode_id], end)
                assert catalog.episode(made.episode_id).state is start


def _ways() -> dict[EpisodeState, list[EpisodeState]]:
    """How to get to each state from a new episode's."""
    found: dict[EpisodeState, list[EpisodeState]] = {EpisodeState.INGESTED: []}
    while True:
        further = {b: [*found[a], b] for a, b in EPISODE_TRANSITIONS if a in found and b not in found}
        if not further:
            return found
        found.update(further)


# ---- fit to be published


def test_nothing_unread_or_unjudged_is_published(catalog: Catalog, episode: str) -> None:
    catalog.set_state([episode], EpisodeState.VALIDATED)
    with pytest.raises(StateError, match="not read back"):
        catalog.set_state([episode], EpisodeState.PUBLISHED)
    catalog.mark_verified({r.key: r.etag or "" for r in catalog.renditions([episode])})
    with pytest.raises(StateError, match="without a critical quality result"):
        catalog.set_state([episode], EpisodeState.PUBLISHED)
    catalog.record_quality([QualityRecord(episode, "looks", 1, passed=False, critical=False)])
    catalog.record_quality([QualityRecord(episode, "post", 1, passed=False)])
    with pytest.raises(StateError, match="critical checks failed: post"):
        catalog.set_state([episode], EpisodeState.PUBLISHED)
    catalog.record_quality([QualityRecord(episode, "post", 2, passed=True)])
    catalog.set_state([episode], EpisodeState.PUBLISHED)


def test_a_published_episode_does_not_become_unfit(catalog: Catalog, episode: str) -> None:
    publish(catalog, episode)
    with pytest.raises(StateError, match="critical checks failed: later"):
        catalog.record_quality([QualityRecord(episode, "later", 1, passed=False)])
    with pytest.raises(StateError, match="not read back"):
        catalog.register_episodes([pair(episode, seed=2)])
    assert sqlstate(catalog, "update kinemill.rendition set verified_at = null") == "KM003"
    catalog.register_episodes([pair(episode, seed=2)], verified=True)
    assert catalog.episode(episode).state is EpisodeState.PUBLISHED
    # Quarantined in the same transaction, the failed check may be written: order does not matter.
    assert (
        sqlstate(
            catalog,
            "insert into kinemill.quality_result (episode_id, check_name, check_version, critical, passed)"
            " values (cast(:id as uuid), 'later', 1, true, false)",
            "update kinemill.episode set state = 'quarantined' where id = cast(:id as uuid)",
            id=episode,
        )
        is None
    )


def test_publishing_and_failing_at_once_cannot_both_happen(catalog: Catalog, episode: str) -> None:
    catalog.mark_verified({r.key: r.etag or "" for r in catalog.renditions([episode])})
    catalog.record_quality([QualityRecord(episode, "post", 1, passed=True)])
    catalog.set_state([episode], EpisodeState.VALIDATED)
    failures: list[KinemillError] = []

    def publish_now() -> None:
        try:
            catalog.set_state([episode], EpisodeState.PUBLISHED)
        except KinemillError as exc:
            failures.append(exc)

    with catalog.engine.begin() as other:
        other.execute(
            sa.text("""
                insert into kinemill.quality_result (episode_id, check_name, check_version, critical, passed)
                values (cast(:id as uuid), 'late', 1, true, false)
            """),
            {"id": episode},
        )
        thread = threading.Thread(target=publish_now)
        thread.start()
        waiting = sa.text("select count(*) from pg_locks where not granted")
        with catalog.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as watch:
            while not watch.execute(waiting).scalar_one():
                assert thread.is_alive(), "it did not wait for the other transaction"
    thread.join()
    assert isinstance(failures[0], StateError)
    assert catalog.episode(episode).state is EpisodeState.VALIDATED


# ---- optimistic locking, and errors in words


def test_a_stale_row_version_is_a_conflict(catalog: Catalog, episode: str) -> None:
    seen = catalog.episode(episode).row_version
    now = catalog.set_state([episode], EpisodeState.VALIDATED, row_versions={episode: seen})[episode]
    assert now == catalog.episode(episode).row_version == seen + 1
    with pytest.raises(ConflictError, match=f"at version {now}, not {seen}"):
        catalog.set_state([episode], EpisodeState.QUARANTINED, row_versions={episode: seen})
    assert catalog.set_state([episode], EpisodeState.VALIDATED)[episode] == now, "nothing to do is no change"


def test_messages_name_the_constraint_and_no_values(catalog: Catalog, episode: str) -> None:
    with pytest.raises(DataError, match="episode_duration_ns_check") as caught:
        _ = [*_run(catalog, "update kinemill.episode set duration_ns = -1, instruction = 'private words'", episode)]
    assert "private words" not in str(caught.value)


def _run(catalog: Catalog, statement: str, episode: str) -> Iterator[None]:
    with translated(f"changing {episode}"), catalog.engine.begin() as connection:
        connection.execute(sa.text(statement))
        yield
