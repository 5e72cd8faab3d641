"""One example of every contract record; the golden files are these, written once and kept."""

from __future__ import annotations

from typing import Any

from kinemill import contracts as c

EPISODE_ID = "01920000-0000-7000-8000-0000000000ab"
SHA256 = "0123456789abcdef" * 4


def receipt() -> c.Receipt:
    """Two groups, one after the other, with all optional fields set."""
    cameras = c.GroupReceipt(
        name="cameras",
        topics=(
            c.TopicReceipt(
                topic="/wrist",
                kind=c.TopicKind.VIDEO,
                channel_id=1,
                schema="foxglove.CompressedVideo",
                encoding="protobuf",
                messages=10,
                rate_hz=30.0,
                codec="h264",
                width=640,
                height=480,
            ),
        ),
        offset=1000,
        length=5000,
        messages=10,
        t_first_ns=0,
        t_last_ns=300_000_000,
        chunks=c.ChunkTable((1000, 3500), (2500, 2500), (0, 166_000_000), (133_000_000, 300_000_000), (5, 5), (7, 8)),
        gops=c.GopTable((0, 1), (0, 166_000_000), (5, 5)),
    )
    state = c.GroupReceipt(
        name="state",
        topics=(
            c.TopicReceipt(
                topic="/joints",
                kind=c.TopicKind.STATE,
                channel_id=2,
                schema="sensor_msgs/msg/JointState",
                encoding="cdr",
                messages=60,
                rate_hz=200.0,
                names=("shoulder", "elbow"),
                units="rad",
            ),
        ),
        offset=6000,
        length=900,
        messages=60,
        t_first_ns=0,
        t_last_ns=295_000_000,
        chunks=c.ChunkTable((6000,), (900,), (0,), (295_000_000,), (60,), (9,)),
        late_messages=2,
    )
    return c.Receipt(
        episode_id=EPISODE_ID,
        profile="vla",
        size_bytes=8000,
        sha256=SHA256,
        t_first_ns=0,
        t_last_ns=300_000_000,
        groups=(cameras, state),
        gop_frames=5,
        missing=("/gripper",),
        counts={"late": 2},
        writer="kinemill-core 0.1.0",
    )


def examples() -> dict[str, Any]:
    """Contract name -> example record."""
    event = c.DrainEvent("gpu.ecc", "T", "ecc_vol_unc", "9f31c2aa", "gpu3 dram=1")
    return {
        "receipt": receipt(),
        "rendition": c.Rendition(
            EPISODE_ID, "vla", f"episodes/ab/{EPISODE_ID}/vla-0123456789ab.mcap", receipt(), etag="abc"
        ),
        "step_spec": c.StepSpec("convert", 3, cpus=4, mem_bytes=4 << 30, requires=("pre_gate",)),
        "step_result": c.StepResult(
            "batch-1", "convert", 3, c.StepStatus.WARN, SHA256, SHA256, 12.5, {"episodes": 3}, ("a.bag: 2 late",)
        ),
        "check": c.Check("gpu.ecc", 1, (c.CheckContext.PROLOG, c.CheckContext.PERIODIC), help="volatile ECC"),
        "check_result": c.CheckResult(
            check="gpu.ecc",
            status=c.CheckStatus.FAIL,
            cls=c.CheckClass.TRANSIENT,
            action=c.FixAction.RESET,
            code="ecc_vol_unc",
            detail="gpu3 dram=1",
            evidence={"gpu3.volatile_uncorrected": "1"},
            limit="0",
            source="vendor sheet",
            age_s=0.0,
            seconds=0.2,
        ),
        "drain_event": event,
        "ledger_entry": c.LedgerEntry("n1", event, c.format_reason(event), 1_700_000_000, 0, "b00t", 5, 1),
        "node_report": c.NodeReport("9f31c2aa", "b00t", 2, 1_700_000_030),
        "attempt_meta": c.AttemptMeta(
            3, "77", 1, 0, ("n1", "n2"), 16, 1200, "0.1.0", 5, 9, c.AttemptOutcome.FAILED, 1234
        ),
        "quarantine_record": c.QuarantineRecord(
            "drop/a.bag",
            "pre_gate",
            "truncated",
            "a.bag ends inside chunk 3; ask the vendor to send it again",
            batch="batch-1",
            at_ns=5,
            evidence={"offset": "4096"},
        ),
    }
