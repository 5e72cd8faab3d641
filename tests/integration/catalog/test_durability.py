"""What a lost disk, a lost machine and a withdrawn consent leave of the catalog."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from kinemill.contracts import EpisodeState, Store, TopicKind, episode_key
from kinemill.episode import EpisodeWriter, TopicSpec, publish
from kinemill.errors import (
    ConfigError,
    ConflictError,
    DataError,
    DeadlineError,
    NotFoundError,
    StateError,
    UnavailableError,
    UsageError,
)
from kinemill.pipelines.catalog import Catalog, EpisodeCard, LabelRecord, ManifestRecord, QualityRecord, uuid7
from kinemill.pipelines.catalog.backup import RestoreFrom, archive_settings, base_backup
from kinemill.pipelines.catalog.embedded import PostgresServer
from kinemill.pipelines.catalog.health import Health, check_catalog
from kinemill.pipelines.catalog.purge import plan_purge, purge
from kinemill.pipelines.catalog.rebuild import read_object, rebuild
from kinemill.process import unprivileged_account
from kinemill.store import MemoryStore
from support.catalog import card_of, fresh_catalog, pair, postgres


def until(condition: object, what: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


# ---- backup, and the way back to a moment


@pytest.fixture
def wide() -> Iterator[Path]:
    """A folder that a server under another account reaches and may write in, as a backup disk would be."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="kinemill-test-"))
    account = unprivileged_account()
    for path in (folder, folder / "archive"):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
        if account is not None:
            os.chown(path, account.uid, account.gid)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("binaries", ["wheel", pytest.param("debian", marks=pytest.mark.full("catalog"))])
def test_a_restore_drill_to_a_moment_and_to_the_end(wide: Path, binaries: str) -> None:
    archive = wide / "archive"
    settings = archive_settings(archive, every_s=60)
    with PostgresServer(wide / "first", binaries=binaries, settings=settings) as server, Catalog(server.url) as catalog:
        catalog.upgrade()
        before = _ingest(catalog, 3)
        base_backup(server.url_of("kinemill"), wide / "base", server.binaries.bin)
        with pytest.raises(ConflictError, match="never written over"):
            base_backup(server.url_of("kinemill"), wide / "base", server.binaries.bin)
        later = _ingest(catalog, 2)
        with psycopg.connect(server.url, autocommit=True) as admin:
            found = admin.execute("select clock_timestamp()").fetchone()
            assert found is not None
            moment: datetime = found[0]
            last = _ingest(catalog, 4)
            found = admin.execute("select pg_walfile_name(pg_switch_wal())").fetchone()
            assert found is not None
            until((archive / found[0]).exists, "the last segment was not archived")
        everything = _dump(catalog)
        epoch = _epoch(server.url)
    # The machine is gone; base backup and archive are all there is.
    with (
        PostgresServer(wide / "second", binaries=binaries, restore=RestoreFrom(wide / "base", archive)) as server,
        Catalog(server.url) as catalog,
    ):
        assert _dump(catalog) == everything, "a row differs after the restore"
        assert _epoch(server.url) != epoch, "a restored server is another epoch, so the export sends all again"
        _ingest(catalog, 1)
    with (
        PostgresServer(
            wide / "third", binaries=binaries, restore=RestoreFrom(wide / "base", archive, until=moment)
        ) as server,
        Catalog(server.url) as catalog,
    ):
        known = {row.card.episode_id for row in catalog.episodes()}
        assert known == {*before, *later}
        assert not known & set(last)
        _ingest(catalog, 1)


def _ingest(catalog: Catalog, count: int) -> list[str]:
    return [done.episode_id for done in catalog.register_episodes([pair() for _ in range(count)])]


def _dump(catalog: Catalog) -> dict[str, list[str]]:
    """Every row of every table, as text."""
    found = {}
    with catalog.engine.connect() as connection:
        names = connection.execute(
            sa.text("select tablename from pg_tables where schemaname = 'kinemill' order by 1")
        ).scalars()
        for name in names.all():
            rows = connection.execute(sa.text(f"select t::text from kinemill.{name} t order by 1"))  # noqa: S608
            found[name] = list(rows.scalars())
    return found


def _epoch(url: str) -> str:
    from kinemill.pipelines.warehouse.read import ChangeReader

    with ChangeReader(url) as reader:
        return reader.epoch()


def test_a_restore_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no base backup"):
        PostgresServer(restore=RestoreFrom(tmp_path)).start()
    with pytest.raises(ConfigError, match="zone"):
        RestoreFrom(tmp_path, until=datetime(2026, 1, 1)).settings()  # noqa: DTZ001 - it must refuse
    with pytest.raises(ConfigError, match="letters"):
        archive_settings(tmp_path / "it's here")
    assert "2026" in RestoreFrom(tmp_path, until=datetime(2026, 1, 1, tzinfo=UTC)).settings()["recovery_target_time"]


def test_a_segment_that_is_handed_over_again_is_no_error_and_another_one_is(tmp_path: Path) -> None:
    archive, log = tmp_path / "archive", tmp_path / "pg_wal"
    archive.mkdir()
    log.mkdir()
    segment = log / "000000010000000000000001"
    command = archive_settings(archive)["archive_command"].strip("'")
    command = command.replace("%p", str(segment)).replace("%f", segment.name)

    def hand_over(content: bytes) -> int:
        segment.write_bytes(content)
        return subprocess.run(["sh", "-c", command], check=False, timeout=120, stderr=subprocess.DEVNULL).returncode

    (archive / f".{segment.name}.partial").write_bytes(b"half of")  # the server died in the middle
    assert hand_over(b"the log") == 0
    assert hand_over(b"the log") == 0, "the server died before it noted that it was done"
    assert hand_over(b"another") != 0
    assert {path.name: path.read_bytes() for path in archive.iterdir()} == {segment.name: b"the log"}


def test_a_backup_shows_no_password_on_its_command_line(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("pg_basebackup", "pg_verifybackup"):
        script = '#!/bin/sh\nfor word in "$@"; do echo "$word"; done >>"$0.argv"\necho "$PGPASSWORD" >"$0.word"\n'
        (programs / name).write_text(
            script + 'for word in "$@"; do case $word in --pgdata=*) mkdir "${word#*=}";; esac; done\n'
        )
        (programs / name).chmod(0o755)
    for number, url in enumerate(("postgresql://u:sec%40ret@h:5/d", "postgresql://h:5/d?user=u&password=sec%40ret")):
        base_backup(url, tmp_path / f"backup-{number}", programs)
        assert (programs / "pg_basebackup.word").read_text() == "sec@ret\n"
    shown = (programs / "pg_basebackup.argv").read_text()
    assert "--dbname=" in shown
    assert "host=h" in shown
    assert "ret" not in shown.replace("--no-password", "")
    with pytest.raises(ConfigError, match="sslpassword"):
        base_backup("postgresql://h/d?sslpassword=x", tmp_path / "no", programs)
    (programs / "pg_basebackup").write_text("#!/bin/sh\nexec sleep 600\n")
    with pytest.raises(DeadlineError, match="pg_basebackup was not done") as caught:
        base_backup("postgresql://u:secret@h/d", tmp_path / "slow", programs, timeout_s=0.2)
    assert "secret" not in str(caught.value)
    assert not list(tmp_path.glob(".*"))


# ---- from the objects alone


def write_episode(store: Store, card: EpisodeCard, *, profile: str = "vla", value: float = 0.0) -> object:
    """A real episode file with two state topics, published; its rendition."""
    import numpy as np

    specs = [
        TopicSpec("/joints", TopicKind.STATE, rate_hz=50, names=("a", "b"), units="rad"),
        TopicSpec("/action", TopicKind.STATE, rate_hz=50, names=("a", "b"), units="rad"),
    ]
    sink = io.BytesIO()
    times = np.arange(150, dtype=np.int64) * 20_000_000
    with EpisodeWriter(
        sink, episode_id=card.episode_id, profile=profile, topics=specs, metadata=card.as_metadata()
    ) as writer:
        for topic in ("/joints", "/action"):
            writer.rows(topic, times, np.full((150, 2), value))
    assert writer.receipt is not None
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".mcap") as file:
        file.write(sink.getvalue())
        file.flush()
        return publish(store, Path(file.name), writer.receipt)


_COMPARED = """
select e.id::text, v.name, e.vendor_key, b.name, t.name, e.instruction, e.language, e.split, e.site, e.t_first_ns,
  e.duration_ns, e.frames, e.fps, e.recorded_at, e.ended_at, r.profile, r.object_key, r.sha256, r.size_bytes, r.etag,
  r.current, r.gop_frames, s.topics, r.layout, c.receipt,
  (select array_agg((g.name, g.byte_range, g.messages, g.t_first_ns, g.t_last_ns)::text order by g.name)
   from kinemill.episode_group g where g.rendition_id = r.id)
from kinemill.episode e join kinemill.rendition r on r.episode_id = e.id
join kinemill.rendition_receipt c on c.rendition_id = r.id join kinemill.topic_set s on s.id = r.topic_set_id
join kinemill.vendor v on v.id = e.vendor_id join kinemill.robot b on b.id = e.robot_id
join kinemill.task t on t.id = e.task_id order by e.id, r.object_key
"""


def _compared(catalog: Catalog) -> list[tuple[object, ...]]:
    with catalog.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(_COMPARED))]


def test_the_catalog_is_rebuilt_from_the_objects_row_by_row(wheel: PostgresServer) -> None:
    store = MemoryStore()
    with fresh_catalog(wheel) as original, fresh_catalog(wheel) as rebuilt:
        for number in range(6):
            card = card_of(uuid7(), task=f"task {number % 2}", site="lab", instruction=f"räum {number} auf")
            original.register_episodes([(card, write_episode(store, card))])  # type: ignore[list-item]
            if number < 2:
                original.register_episodes([(card, write_episode(store, card, profile="world"))])  # type: ignore[list-item]
            if number == 5:
                original.register_episodes([(card, write_episode(store, card, value=1.0))])  # type: ignore[list-item]
        seen: list[int] = []
        report = rebuild(rebuilt, store, batch_size=4, progress=seen.append)
        assert (report.objects, report.refused, report.foreign) == (9, {}, 0)
        assert report.outcomes == {"new": 6, "added": 2, "corrected": 1}
        assert seen == [4, 8, 9]
        assert len(_compared(original)) == 9
        assert _compared(rebuilt) == _compared(original), "a row differs from the original's"
        assert rebuild(rebuilt, store).outcomes == {"same": 9}, "a second rebuild changes nothing"


def test_what_cannot_be_rebuilt_is_named_and_the_rest_is_not_held_up(one: Catalog) -> None:
    store = MemoryStore()
    good, bad, nameless = card_of(uuid7()), card_of(uuid7()), EpisodeCard(uuid7(), "", "", "r")
    for card in (good, nameless):
        write_episode(store, card)
    damaged = write_episode(store, bad)
    key = damaged.key  # type: ignore[attr-defined]
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 0xFF
    store.delete(key)
    store.put_if_absent(key, bytes(data))
    store.put_if_absent("episodes/00/notes.txt", b"not an episode")
    twin = card_of(uuid7(), vendor_key=good.vendor_key)
    write_episode(store, twin, value=2.0)
    report = rebuild(one, store)
    assert (report.objects, report.foreign) == (4, 1)
    assert report.outcomes == {"new": 1, "duplicate": 1}
    reasons = " | ".join(report.refused.values())
    assert "its bytes have sha256" in reasons
    assert "names no vendor" in reasons
    assert "has the vendor's key" in reasons
    assert one.counts()["ingested"] == 1


def test_one_object_that_no_row_can_hold_stops_no_rebuild(one: Catalog) -> None:
    store = MemoryStore()
    endless, good, withdrawn = card_of(uuid7(), vendor="v" * 500), card_of(uuid7()), card_of(uuid7())
    one.register_episodes([(withdrawn, write_episode(store, withdrawn))])  # type: ignore[list-item]
    purge(one, store, withdrawn.episode_id, reason="r", actor="a")
    for card in (endless, good, withdrawn):
        write_episode(store, card, value=5.0)
    report = rebuild(one, store, batch_size=1)
    assert report.outcomes == {"new": 1}
    reasons = {key.split("/")[2]: why for key, why in report.refused.items()}
    assert set(reasons) == {endless.episode_id, withdrawn.episode_id}
    assert "vendor_name_check" in reasons[endless.episode_id]
    assert "consent was withdrawn" in reasons[withdrawn.episode_id]
    again = rebuild(one, store)
    assert (again.outcomes, set(again.refused)) == ({"same": 1}, set(report.refused)), "together as one by one"


def test_objects_of_any_bytes_are_read_or_refused(tmp_path: Path) -> None:
    """Their names are right, so whoever wrote them could have written this."""
    store, card = MemoryStore(), card_of(uuid7())
    whole = store.get(write_episode(store, card).key)  # type: ignore[attr-defined]
    rng = random.Random(7)
    refused = 0
    for turn in range(150):
        data = bytearray(whole)
        at = rng.randrange(len(data) - 8)
        if turn % 2:
            data[at : at + 8] = rng.randbytes(8)
        else:
            del data[at:]
        key = episode_key(uuid.UUID(card.episode_id), "vla", hashlib.sha256(data).hexdigest())
        store.put_if_absent(key, bytes(data))
        try:
            read_object(store, store.head(key), tmp_path)
        except DataError:
            refused += 1
    assert refused > 75, "all that were cut, and most that were overwritten"


def test_what_was_ingested_from_a_drop_comes_back_with_its_names(wheel: PostgresServer, tmp_path: Path) -> None:
    from kinemill.pipelines.ingest.catalog_ledger import CatalogLedger
    from support.ingest import EPISODES, ingest, shared_drops

    store = MemoryStore()
    with fresh_catalog(wheel) as original, fresh_catalog(wheel) as rebuilt:
        drop = shared_drops()["deskarm_lerobot"]
        ingest(drop.path, "deskarm_lerobot", tmp_path / "w", store=store, ledger=CatalogLedger(original))
        assert rebuild(rebuilt, store).outcomes == {"new": EPISODES}
        names = ("episode_id", "vendor", "vendor_key", "robot", "task", "instruction")

        def known(catalog: Catalog) -> list[list[str]]:
            return [[getattr(row.card, name) for name in names] for row in catalog.episodes()]

        assert known(rebuilt) == known(original)
        keys = [[r.key for r in c.renditions([row[0] for row in known(original)])] for c in (original, rebuilt)]
        assert keys[0] == keys[1]


# ---- withdrawn consent


def _published(catalog: Catalog, store: Store) -> EpisodeCard:
    card = card_of(uuid7(), site="lab", instruction="private words")
    rendition = write_episode(store, card)
    catalog.register_episodes(
        [(card, rendition)],  # type: ignore[list-item]
        verified=True,
        quality=[QualityRecord(card.episode_id, "post", 1, passed=True, message="said something", evidence={"a": "b"})],
        labels=[LabelRecord(card.episode_id, "person", "somebody")],
    )
    catalog.set_state([card.episode_id], EpisodeState.VALIDATED)
    catalog.set_state([card.episode_id], EpisodeState.PUBLISHED)
    return card


def test_a_purge_deletes_names_and_cannot_be_undone(catalog: Catalog) -> None:
    store = MemoryStore()
    card, other = _published(catalog, store), _published(catalog, store)
    episode = card.episode_id
    catalog.register_episodes([(card, write_episode(store, card, value=3.0))], verified=True)  # type: ignore[list-item]
    for name in ("m1", "m2"):
        manifest = ManifestRecord(name, f"manifests/{name}", "aa" * 32, "bb" * 32, 1, 1, 2, 3, 1.0)
        catalog.record_manifest(manifest, [episode, other.episode_id])
    plan = plan_purge(catalog, store, episode)
    assert (len(plan.objects), plan.manifests, plan.requested) == (2, ("m1", "m2"), False)
    assert catalog.episode(episode).state is EpisodeState.PUBLISHED, "a plan changes nothing"
    report = purge(catalog, store, episode, reason="request 4711", actor="curator")
    assert (len(report.deleted), report.manifests, report.already_done) == (2, ("m1", "m2"), False)
    left = [meta.key for meta in store.list("episodes/")]
    assert left == [catalog.renditions([other.episode_id])[0].key], "the other episode is untouched"
    row = catalog.episode(episode)
    assert (row.state, row.purged, row.card.instruction, row.card.site) == (EpisodeState.RETIRED, True, "", "")
    assert catalog.withdrawn_in("m1") == catalog.withdrawn_in("m2") == {episode: "purged"}
    with catalog.transaction("reading the audit") as connection:
        audit = connection.execute(
            sa.text("select actor, action, subject, details from kinemill.audit order by id")
        ).all()
        texts = connection.execute(
            sa.text("select string_agg(message || evidence::text, '') from kinemill.quality_result")
        )
        assert texts.scalar_one() == "said something" + json.dumps({"a": "b"}) + "{}"
    assert [(a.actor, a.action, a.subject) for a in audit] == [
        ("curator", "purge.requested", episode),
        ("curator", "purge.completed", episode),
    ]
    assert audit[0].details["manifests"] == ["m1", "m2"]
    assert purge(catalog, store, episode, reason="again", actor="x").already_done
    with pytest.raises(StateError, match="consent was withdrawn"):
        catalog.register_episodes([pair(episode, seed=5, vendor_key=card.vendor_key)])
    (again,) = catalog.register_episodes([pair(vendor_key=card.vendor_key)])
    assert again.outcome == "duplicate", "the vendor's next drop does not bring it back"
    with pytest.raises(NotFoundError):
        purge(catalog, store, str(uuid.uuid4()), reason="r", actor="a")
    with pytest.raises(UsageError):
        plan_purge(catalog, store, "../../etc")


def test_what_comes_after_a_purge_is_seen_and_goes_with_the_next(one: Catalog) -> None:
    store = MemoryStore()
    card = _published(one, store)
    purge(one, store, card.episode_id, reason="r", actor="a")
    assert next(f for f in check_catalog(one, store=store) if f.check == "withdrawn").health is Health.OK
    # A worker had written its object and was not yet told; a manifest was built from an older snapshot.
    write_episode(store, card, value=4.0)
    manifest = ManifestRecord("late", "manifests/late", "aa" * 32, "bb" * 32, 1, 1, 1, 3, 1.0)
    one.record_manifest(manifest, [card.episode_id])
    seen = next(f for f in check_catalog(one, store=store) if f.check == "withdrawn")
    assert (seen.health, card.episode_id in seen.detail) == (Health.FAIL, True)
    again = purge(one, store, card.episode_id, reason="r", actor="a")
    assert (len(again.deleted), again.manifests, again.already_done) == (2, ("late",), False)
    assert list(store.list("episodes/")) == []
    last = purge(one, store, card.episode_id, reason="r", actor="a")
    assert (last.deleted, last.manifests, last.already_done) == (again.deleted, ("late",), True)


@pytest.mark.parametrize("state", list(EpisodeState))
def test_an_episode_in_any_state_can_be_purged(one: Catalog, state: EpisodeState) -> None:
    store = MemoryStore()
    card = card_of(uuid7())
    one.register_episodes([(card, write_episode(store, card))], verified=True)  # type: ignore[list-item]
    one.record_quality([QualityRecord(card.episode_id, "post", 1, passed=True)])
    ways = {
        EpisodeState.INGESTED: [],
        EpisodeState.VALIDATED: [EpisodeState.VALIDATED],
        EpisodeState.PUBLISHED: [EpisodeState.VALIDATED, EpisodeState.PUBLISHED],
        EpisodeState.QUARANTINED: [EpisodeState.QUARANTINED],
        EpisodeState.RETIRED: [EpisodeState.QUARANTINED, EpisodeState.RETIRED],
    }
    for step in ways[state]:
        one.set_state([card.episode_id], step)
    purge(one, store, card.episode_id, reason="r", actor="a")
    assert one.episode(card.episode_id).state is EpisodeState.RETIRED
    assert list(store.list()) == []


class Stubborn(MemoryStore):
    """Fails to delete until told otherwise."""

    broken = True

    def delete(self, key: str) -> None:
        if self.broken:
            raise UnavailableError("the store is gone")
        super().delete(key)


def test_a_purge_that_was_cut_short_is_finished_by_the_next(one: Catalog) -> None:
    store = Stubborn()
    card = _published(one, store)
    with pytest.raises(UnavailableError):
        purge(one, store, card.episode_id, reason="r", actor="a")
    assert one.episode(card.episode_id).purged, "it is recorded before the first byte goes"
    assert plan_purge(one, store, card.episode_id).requested
    from kinemill.pipelines.catalog.health import Health, check_catalog

    open_purge = [f for f in check_catalog(one) if f.check == "purges"]
    assert open_purge[0].health is Health.FAIL
    store.broken = False
    report = purge(one, store, card.episode_id, reason="r", actor="a")
    assert (len(report.deleted), report.already_done) == (1, False)
    assert list(store.list()) == []


# ---- the server itself


def test_the_embedded_server_survives_kill_and_a_new_owner_finds_its_data(tmp_path: Path) -> None:
    with postgres("wheel", folder=tmp_path / "pg", durable=True) as server, Catalog(server.url) as catalog:
        catalog.upgrade()
        episode = _ingest(catalog, 1)[0]
        url = server.url
        with pytest.raises(ConflictError, match="in use by process"):
            PostgresServer(tmp_path / "pg").start()
        server.kill()
        with pytest.raises(UnavailableError):
            catalog.counts()
        server.restart()
        assert server.url == url
        assert catalog.episode(episode).card.vendor == "acme"
    with PostgresServer(tmp_path / "pg") as again, Catalog(again.url) as catalog:
        assert again.binaries.major == server_major(again), "an existing folder keeps its version"
        assert catalog.counts()["ingested"] == 1
    # As root its data may lie apart, where the server's account reaches it.
    shutil.rmtree((tmp_path / "pg" / "data").resolve().parent)


def server_major(server: PostgresServer) -> int:
    return int((server.data / "PG_VERSION").read_text())
