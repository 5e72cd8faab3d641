"""The attachment `tg.index`: a receipt inside the file that it describes.

    4 bytes  "TGX1"
    4 bytes  length of the JSON that follows, little endian
    JSON     {"receipt": all of the receipt that is no table, "groups": what the layout does not tell of each,
             "topics": the layout's topic table}
    rest     the layout, packed with checksums; then nothing

Size and sha256 are left out: they are those of the finished file.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any, Final

import numpy as np

from kinemill import records
from kinemill.contracts.episode import ChunkTable, GopTable, GroupReceipt, Receipt
from kinemill.episode.counts import index_bytes
from kinemill.episode.layout import Layout
from kinemill.errors import ContractError, CorruptError, LimitError

__all__ = ["index_attachment", "read_index"]

_MAGIC: Final = b"TGX1"
_MAX_JSON: Final = 16 << 20


def index_attachment(receipt: Receipt) -> bytes:
    """The attachment's data."""
    layout = Layout.from_receipt(receipt)
    plain: dict[str, Any] = records.encode(replace(receipt, groups=()))
    for key in ("size_bytes", "sha256", "groups"):
        del plain[key]
    extra = [
        {
            "late_messages": g.late_messages,
            "length": g.length,
            "gops": None if g.gops is None else {"t_first_ns": g.gops.t_first_ns, "frames": g.gops.frames},
        }
        for g in receipt.groups
    ]
    head = records.dumps({"receipt": plain, "groups": extra, "topics": layout.topics_json()}).encode()
    return _MAGIC + struct.pack("<I", len(head)) + head + layout.pack(crc=True)


def read_index(data: bytes, *, size_bytes: int = 0, sha256: str = "") -> Receipt:
    """The receipt out of an attachment's data.

    Args:
        data: Of the attachment `tg.index`.
        size_bytes: Of the file, for the receipt.
        sha256: Of the file, for the receipt.

    Raises:
        CorruptError: Not what a writer wrote.
    """
    if len(data) < 8 or data[:4] != _MAGIC:
        raise CorruptError(f"tg.index starts with {bytes(data[:4])!r}, not {_MAGIC!r}")
    (size,) = struct.unpack_from("<I", data, 4)
    if size > _MAX_JSON:
        raise LimitError(f"tg.index declares {size >> 20} MiB of JSON; at most {_MAX_JSON >> 20} are read")
    if size > len(data) - 8:
        raise CorruptError(f"tg.index declares {size} bytes of JSON, {len(data) - 8} are left")
    try:
        head = json.loads(data[8 : 8 + size])
        layout = Layout.from_columns(head["topics"], data[8 + size :])
        groups = tuple(_group(layout, i, extra) for i, extra in enumerate(head["groups"]))
        if len(groups) != len(layout.groups):
            raise CorruptError("tg.index: its two parts differ in their groups")
        plain = {**head["receipt"], "groups": groups, "size_bytes": size_bytes, "sha256": sha256}
        return records.decode(Receipt, plain, where="tg.index")
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, ContractError) as exc:
        raise CorruptError(f"tg.index is not what a writer wrote: {type(exc).__name__} {exc}") from exc


def _group(layout: Layout, i: int, extra: dict[str, Any]) -> GroupReceipt:
    group = layout.groups[i]
    if group.counted is None or group.counts is None or (group.crc32 is None and len(group)):
        raise CorruptError(f"tg.index: group {group.name} has no counts or checksums")
    crc = np.empty(0, np.int64) if group.crc32 is None else group.crc32
    gops = None
    if extra["gops"] is not None:
        chunk = () if group.gop_chunk is None else tuple(group.gop_chunk.tolist())
        gops = GopTable(chunk, tuple(extra["gops"]["t_first_ns"]), tuple(extra["gops"]["frames"]))
    table = ChunkTable(
        tuple(group.offset.tolist()),
        tuple(group.length.tolist()),
        tuple(group.t_first_ns.tolist()),
        tuple(group.t_last_ns.tolist()),
        tuple(group.counts.sum(axis=0).tolist()),
        tuple(crc.tolist()),
        tuple(map(tuple, group.counted.runs)),
    )
    length = int(extra["length"])
    if len(group):
        end = int(group.offset[-1] + group.length[-1] + index_bytes(group.counts)[-1] - group.offset[0])
        if length != end:
            raise CorruptError(f"tg.index: group {group.name} is {length} bytes long, its chunks say {end}")
    return GroupReceipt(
        group.name,
        tuple(replace(t, messages=int(n)) for t, n in zip(group.topics, group.counts.sum(axis=1), strict=True)),
        int(group.offset[0]) if len(group) else 0,
        length,
        int(group.counts.sum()),
        int(group.t_first_ns.min()) if len(group) else 0,
        int(group.t_last_ns.max()) if len(group) else 0,
        table,
        gops,
        int(extra["late_messages"]),
        group.skew_ns,
    )
