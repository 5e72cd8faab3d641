"""SQLAlchemy's view of the catalog's tables, for queries; the migrations' SQL is the truth.

Checks, triggers and exclusion constraints stand only in the migrations. A test compares the columns, keys and
indexes here with a migrated database.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Computed,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION, INT8RANGE, JSONB, REAL, TIMESTAMP, UUID, Range
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import UserDefinedType

__all__ = [
    "SCHEMA",
    "Audit",
    "Base",
    "CatalogIdentity",
    "Delivery",
    "Episode",
    "EpisodeGroup",
    "EpisodeTransition",
    "Label",
    "Manifest",
    "ManifestUse",
    "Outbox",
    "Purge",
    "QualityResult",
    "Quarantine",
    "Rendition",
    "RenditionReceipt",
    "Robot",
    "Run",
    "RunStep",
    "Task",
    "TopicSet",
    "Vendor",
]

SCHEMA = "kinemill"
_TIME = TIMESTAMP(timezone=True)
_NOW = text("clock_timestamp()")


class Xid8(UserDefinedType[int]):
    """A 64-bit transaction id."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """The type's name."""
        return "xid8"


class Base(DeclarativeBase):
    """All tables lie in the schema `kinemill`."""

    metadata = MetaData(schema=SCHEMA)
    type_annotation_map = {  # noqa: RUF012 - how SQLAlchemy reads it
        str: Text(),
        bytes: LargeBinary(),
        datetime: _TIME,
        float: DOUBLE_PRECISION(),
        uuid.UUID: UUID(as_uuid=True),
        dict[str, Any]: JSONB(),
        list[str]: ARRAY(Text()),
    }


def _number(kind: type[Integer] = Integer) -> Any:
    return mapped_column(kind(), Identity(always=True), primary_key=True)


class CatalogIdentity(Base):
    """Which catalog this is; one row."""

    __tablename__ = "identity"
    one: Mapped[bool] = mapped_column(primary_key=True, server_default="true")
    id: Mapped[uuid.UUID] = mapped_column(server_default=text("gen_random_uuid()"))


class Vendor(Base):
    """Who records."""

    __tablename__ = "vendor"
    id: Mapped[int] = _number()
    name: Mapped[str] = mapped_column(unique=True)


class Robot(Base):
    """A robot model."""

    __tablename__ = "robot"
    id: Mapped[int] = _number()
    name: Mapped[str] = mapped_column(unique=True)


class Task(Base):
    """A task's name; the empty one is a task nobody named."""

    __tablename__ = "task"
    id: Mapped[int] = _number()
    name: Mapped[str] = mapped_column(unique=True)


class TopicSet(Base):
    """A topic table as JSON, shared by all episodes of a robot."""

    __tablename__ = "topic_set"
    __table_args__ = {"comment": "topic tables as JSON, one for all episodes of a robot"}  # noqa: RUF012
    id: Mapped[int] = _number()
    sha256: Mapped[bytes] = mapped_column(unique=True)
    topics: Mapped[str]


class Delivery(Base):
    """A drop as a vendor handed it over; never changed, never deleted."""

    __tablename__ = "delivery"
    __table_args__ = (UniqueConstraint("vendor_id", "name"),)
    id: Mapped[int] = _number(BigInteger)
    vendor_id: Mapped[int] = mapped_column(ForeignKey(Vendor.id))
    name: Mapped[str]
    source_url: Mapped[str] = mapped_column(server_default="")
    files: Mapped[int] = mapped_column(server_default="0")
    size_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")
    sha256: Mapped[bytes | None]
    details: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    received_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class Run(Base):
    """One run of one batch."""

    __tablename__ = "run"
    id: Mapped[int] = _number(BigInteger)
    batch: Mapped[str] = mapped_column(unique=True)
    delivery_id: Mapped[int | None] = mapped_column(ForeignKey(Delivery.id))
    status: Mapped[str] = mapped_column(server_default="running")
    plan: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    started_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    finished_at: Mapped[datetime | None]


class RunStep(Base):
    """What one step did to one input."""

    __tablename__ = "run_step"
    __table_args__ = {  # noqa: RUF012
        "comment": "what was done, keyed by what it was done to; schedulers only cache this"
    }
    batch: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[str] = mapped_column(primary_key=True)
    step_version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    input_digest: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]
    attempts: Mapped[int] = mapped_column(server_default="1")
    claimed_by: Mapped[str] = mapped_column(server_default="")
    claim_token: Mapped[uuid.UUID]
    lease_until: Mapped[datetime | None]
    output_digest: Mapped[str] = mapped_column(server_default="")
    seconds: Mapped[float] = mapped_column(server_default="0")
    counts: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    messages: Mapped[list[str]] = mapped_column(server_default="{}")
    claimed_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    finished_at: Mapped[datetime | None]


class EpisodeTransition(Base):
    """Which state may follow which."""

    __tablename__ = "episode_transition"
    old_state: Mapped[str] = mapped_column(primary_key=True)
    new_state: Mapped[str] = mapped_column(primary_key=True)


class Episode(Base):
    """One recorded episode."""

    __tablename__ = "episode"
    __table_args__ = (
        UniqueConstraint("vendor_id", "vendor_key"),
        Index("episode_state", "state", postgresql_where=text("state <> 'published'")),
        Index("episode_batch", "batch", postgresql_where=text("batch <> ''")),
        Index("episode_delivery", "delivery_id"),
    )
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    vendor_id: Mapped[int] = mapped_column(ForeignKey(Vendor.id))
    vendor_key: Mapped[str]
    delivery_id: Mapped[int | None] = mapped_column(ForeignKey(Delivery.id))
    batch: Mapped[str] = mapped_column(server_default="")
    robot_id: Mapped[int] = mapped_column(ForeignKey(Robot.id))
    task_id: Mapped[int] = mapped_column(ForeignKey(Task.id))
    instruction: Mapped[str] = mapped_column(server_default="")
    language: Mapped[str] = mapped_column(server_default="")
    split: Mapped[str] = mapped_column(server_default="train")
    site: Mapped[str] = mapped_column(server_default="")
    t_first_ns: Mapped[int] = mapped_column(BigInteger)
    duration_ns: Mapped[int] = mapped_column(BigInteger)
    frames: Mapped[int]
    fps: Mapped[float] = mapped_column(REAL)
    frames_suspect: Mapped[bool] = mapped_column(
        Computed("abs(frames - duration_ns / 1e9 * fps) > greatest(2.0, 0.02 * frames)", persisted=True)
    )
    recorded_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    state: Mapped[str] = mapped_column(server_default="ingested")
    degraded_steps: Mapped[list[str]] = mapped_column(server_default="{}")
    purged_at: Mapped[datetime | None]
    row_version: Mapped[int] = mapped_column(server_default="1")
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class Rendition(Base):
    """One object of an episode; what it is never changes."""

    __tablename__ = "rendition"
    __table_args__ = (
        UniqueConstraint("id", "size_bytes"),
        UniqueConstraint("id", "episode_id", name="rendition_of_its_episode"),
        Index("rendition_current", "episode_id", "profile", unique=True, postgresql_where=text("current")),
        Index("rendition_content", "sha256", unique=True, postgresql_where=text("current")),
        Index("rendition_episode", "episode_id"),
    )
    id: Mapped[int] = _number(BigInteger)
    episode_id: Mapped[uuid.UUID] = mapped_column(ForeignKey(Episode.id))
    profile: Mapped[str]
    object_key: Mapped[str] = mapped_column(unique=True)
    sha256: Mapped[bytes]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    etag: Mapped[str | None]
    current: Mapped[bool] = mapped_column(server_default="true")
    gop_frames: Mapped[int | None]
    topic_set_id: Mapped[int] = mapped_column(ForeignKey(TopicSet.id))
    layout: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    verified_at: Mapped[datetime | None]
    purged_at: Mapped[datetime | None]


class RenditionReceipt(Base):
    """The whole receipt, packed."""

    __tablename__ = "rendition_receipt"
    rendition_id: Mapped[int] = mapped_column(ForeignKey(Rendition.id), primary_key=True, autoincrement=False)
    receipt: Mapped[bytes] = mapped_column(comment="the whole receipt: canonical JSON, zlib")


class EpisodeGroup(Base):
    """One topic group's byte range."""

    __tablename__ = "episode_group"
    __table_args__ = (ForeignKeyConstraint(["rendition_id", "size_bytes"], [Rendition.id, Rendition.size_bytes]),)
    rendition_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    name: Mapped[str] = mapped_column(primary_key=True)
    byte_range: Mapped[Range[int]] = mapped_column(INT8RANGE)
    messages: Mapped[int] = mapped_column(BigInteger)
    t_first_ns: Mapped[int] = mapped_column(BigInteger)
    t_last_ns: Mapped[int] = mapped_column(BigInteger)


class QualityResult(Base):
    """What one check said of an episode."""

    __tablename__ = "quality_result"
    __table_args__ = (
        UniqueConstraint(
            "episode_id", "rendition_id", "check_name", "check_version", postgresql_nulls_not_distinct=True
        ),
        ForeignKeyConstraint(
            ["rendition_id", "episode_id"], [Rendition.id, Rendition.episode_id], name="quality_of_its_own_object"
        ),
    )
    id: Mapped[int] = _number(BigInteger)
    episode_id: Mapped[uuid.UUID] = mapped_column(ForeignKey(Episode.id))
    rendition_id: Mapped[int | None] = mapped_column(ForeignKey(Rendition.id))
    check_name: Mapped[str]
    check_version: Mapped[int]
    critical: Mapped[bool]
    passed: Mapped[bool]
    score: Mapped[float | None]
    message: Mapped[str] = mapped_column(server_default="")
    evidence: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    at: Mapped[datetime] = mapped_column(server_default=_NOW)


class Label(Base):
    """A word of a label set, given to an episode."""

    __tablename__ = "label"
    __table_args__ = (UniqueConstraint("episode_id", "label_set", "label"),)
    id: Mapped[int] = _number(BigInteger)
    episode_id: Mapped[uuid.UUID] = mapped_column(ForeignKey(Episode.id))
    label_set: Mapped[str]
    label: Mapped[str]
    score: Mapped[float | None]
    author: Mapped[str] = mapped_column(server_default="")
    at: Mapped[datetime] = mapped_column(server_default=_NOW)
    retracted_at: Mapped[datetime | None]


class Quarantine(Base):
    """Something put aside, and why."""

    __tablename__ = "quarantine"
    id: Mapped[int] = _number(BigInteger)
    source: Mapped[str]
    stage: Mapped[str]
    code: Mapped[str]
    message: Mapped[str]
    episode_id: Mapped[uuid.UUID | None]
    batch: Mapped[str | None]
    evidence: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    at: Mapped[datetime] = mapped_column(server_default=_NOW)
    resolved_at: Mapped[datetime | None]
    identity: Mapped[str] = mapped_column(
        Computed(
            "md5(source || chr(31) || stage || chr(31) || code || chr(31) || coalesce(batch, ''))", persisted=True
        ),
        unique=True,
        comment="the same finding twice is one row",
    )


class Manifest(Base):
    """A manifest that was published."""

    __tablename__ = "manifest"
    id: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(Integer, Identity(always=True), unique=True)
    object_key: Mapped[str] = mapped_column(unique=True)
    spec_sha256: Mapped[bytes]
    sha256: Mapped[bytes]
    snapshot_id: Mapped[int] = mapped_column(BigInteger)
    seed: Mapped[int] = mapped_column(BigInteger)
    row_count: Mapped[int] = mapped_column(BigInteger)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    hours: Mapped[float]
    creator: Mapped[str] = mapped_column(server_default="")
    details: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class ManifestUse(Base):
    """Which episodes a manifest holds."""

    __tablename__ = "manifest_use"
    __table_args__ = (Index("manifest_use_episode", "episode_id"),)
    manifest_number: Mapped[int] = mapped_column(ForeignKey(Manifest.number), primary_key=True)
    episode_id: Mapped[uuid.UUID] = mapped_column(ForeignKey(Episode.id), primary_key=True)


class Purge(Base):
    """Withdrawn consent: what was asked, and when it was done."""

    __tablename__ = "purge"
    id: Mapped[int] = _number(BigInteger)
    episode_id: Mapped[uuid.UUID] = mapped_column(ForeignKey(Episode.id), unique=True)
    reason: Mapped[str]
    actor: Mapped[str]
    objects: Mapped[list[str]]
    manifests: Mapped[list[str]]
    requested_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    completed_at: Mapped[datetime | None]


class Audit(Base):
    """Who did what; only ever appended to."""

    __tablename__ = "audit"
    id: Mapped[int] = _number(BigInteger)
    at: Mapped[datetime] = mapped_column(server_default=_NOW)
    actor: Mapped[str]
    action: Mapped[str]
    subject: Mapped[str]
    details: Mapped[dict[str, Any]] = mapped_column(server_default="{}")


class Outbox(Base):
    """Episodes that changed, in the order of their transactions."""

    __tablename__ = "outbox"
    __table_args__ = {  # noqa: RUF012
        "comment": "read strictly below pg_snapshot_xmin(pg_current_snapshot()):"
        " no transaction below it can still commit"
    }
    xid: Mapped[int] = mapped_column(Xid8(), primary_key=True, server_default=text("pg_current_xact_id()"))
    seq: Mapped[int] = mapped_column(BigInteger, Identity(always=False), primary_key=True)
    episode_id: Mapped[uuid.UUID]
    at: Mapped[datetime] = mapped_column(server_default=_NOW)
