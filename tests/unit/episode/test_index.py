"""`tg.index` says what its receipt says, and whatever else stands there is a typed error."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import replace
from typing import Any

import pytest

from kinemill.contracts.episode import Receipt
from kinemill.episode.index import index_attachment, read_index
from kinemill.errors import DataError
from support.episode import small_episode

VALUES = [None, float("inf"), float("nan"), -1, 1 << 70, -(1 << 70), 0, True, "x", "9" * 30, [], {}, [None], [[0]]]


def parts(data: bytes) -> tuple[Any, bytes]:
    (size,) = struct.unpack_from("<I", data, 4)
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def joined(head: Any, rest: bytes) -> bytes:
    text = json.dumps(head).encode()
    return b"TGX1" + struct.pack("<I", len(text)) + text + rest


def changed(value: Any, rng: random.Random) -> Any:
    """The same tree with one leaf, key or item that is not what it was."""
    if isinstance(value, dict) and value:
        key = rng.choice(sorted(value))
        if rng.random() < 0.15:
            del value[key]
        else:
            value[key] = rng.choice(VALUES) if rng.random() < 0.3 else changed(value[key], rng)
        return value
    if isinstance(value, list) and value:
        at = rng.randrange(len(value))
        if rng.random() < 0.2:
            value.append(value[at])
        elif rng.random() < 0.2:
            value.pop(at)
        else:
            value[at] = changed(value[at], rng)
        return value
    return rng.choice(VALUES)


@pytest.mark.parametrize("profile", ["vla", "world"])
def test_the_receipt_comes_back(profile: str) -> None:
    data, receipt = small_episode(2, 2, 30, profile)
    assert len(data) == receipt.size_bytes
    expected = replace(receipt, sha256="0" * 64)
    assert read_index(index_attachment(receipt), size_bytes=receipt.size_bytes, sha256="0" * 64) == expected


def test_any_other_json_is_a_typed_error_or_a_receipt() -> None:
    head, rest = parts(index_attachment(small_episode(2, 2, 30, "world")[1]))
    rng = random.Random(20261130)
    refused = 0
    for _ in range(3000):
        tree = changed(json.loads(json.dumps(head)), rng)
        try:
            assert isinstance(read_index(joined(tree, rest)), Receipt)
        except DataError:
            refused += 1
    assert refused > 1000


@pytest.mark.parametrize("number", ["Infinity", "1e999", "NaN"])
@pytest.mark.parametrize("key", ["length", "late_messages"])
def test_numbers_without_an_integer_are_refused(key: str, number: str) -> None:
    data = index_attachment(small_episode(1, 1, 10)[1])
    head, rest = parts(data)
    value = head["groups"][0][key]
    text = json.dumps(head).replace(f'"{key}": {value}', f'"{key}": {number}', 1).encode()
    with pytest.raises(DataError, match=r"tg\.index"):
        read_index(b"TGX1" + struct.pack("<I", len(text)) + text + rest)


def test_more_groups_than_the_layout_has_are_refused() -> None:
    head, rest = parts(index_attachment(small_episode(1, 1, 10)[1]))
    head["groups"] *= 2
    with pytest.raises(DataError, match=r"tg\.index"):
        read_index(joined(head, rest))
