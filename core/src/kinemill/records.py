"""Plain data (what JSON and TOML give) to frozen dataclasses and back, strictly.

One decoder serves contracts and settings, so that a misspelt key or a string where a number
belongs is refused everywhere in the same words. It knows dataclasses, enums, `X | None`,
`tuple[X, ...]`, `dict[str, X]`, `Literal`, str, bool, int, float, bytes (as hex) and `Path`.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kinemill.errors import ContractError, UnknownKeyError

__all__ = ["decode", "dumps", "encode", "loads", "nearest"]

T = TypeVar("T")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` is a slip of, or None: `cache_dir` (0.67 alike) is no answer to `state_dir`."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.75)
    return found[0] if found else None


def encode(value: Any) -> Any:
    """`value` as JSON-ready plain data; dataclass fields keep their declared order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ContractError(f"{value} has no place in JSON: leave the field out or write None")
    return value


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Canonical JSON: keys sorted, no spaces unless `indent` is given, no NaN."""
    separators = (",", ": ") if indent is not None else (",", ":")
    return json.dumps(encode(value), sort_keys=True, indent=indent, separators=separators, allow_nan=False)


def loads(cls: type[T], text: str | bytes, *, where: str = "") -> T:
    """JSON text to `cls`.

    Raises:
        ContractError: Not JSON, or JSON that does not fit `cls`.
    """
    label = where or cls.__name__
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ContractError(f"{label}: not valid JSON ({exc})") from exc
    return decode(cls, data, where=label)


def decode(cls: type[T], data: Any, *, where: str = "") -> T:
    """Plain data to `cls`, refusing unknown keys, missing keys and wrong types.

    Args:
        cls: A dataclass or any of the types in the module's list.
        data: What `json.loads` or `tomllib.load` returned.
        where: What to name in an error, such as a file name.

    Raises:
        UnknownKeyError: A key that `cls` does not declare; the nearest declared one is named.
        ContractError: A key is missing, or a value has the wrong type or a forbidden value.
    """
    result: T = _decode(cls, data, where or getattr(cls, "__name__", str(cls)))
    return result


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(kind: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        return _decode_union(kind, data, where)
    if origin is typing.Literal:
        if data not in typing.get_args(kind):
            raise ContractError(f"{where}: {data!r} is not one of {list(typing.get_args(kind))}")
        return data
    if origin is tuple:
        return _decode_tuple(kind, data, where)
    if origin in (dict, Mapping):
        return _decode_dict(kind, data, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, data, where)
    if isinstance(kind, type):
        return _decode_plain(kind, data, where)
    raise ContractError(f"{where}: no decoder for {kind!r}")


def _decode_union(kind: Any, data: Any, where: str) -> Any:
    members = typing.get_args(kind)
    if data is None and type(None) in members:
        return None
    rest = [m for m in members if m is not type(None)]
    if len(rest) == 1:
        return _decode(rest[0], data, where)
    problems: list[str] = []
    for member in rest:
        try:
            return _decode(member, data, where)
        except ContractError as exc:
            problems.append(str(exc))
    raise ContractError("; or ".join(problems))


def _decode_tuple(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, list | tuple):
        raise ContractError(f"{where}: expected a list, got {type(data).__name__}")
    args = typing.get_args(kind)
    if len(args) == 2 and args[1] is Ellipsis:
        item = args[0]
        if item is int and all(type(v) is int for v in data):  # chunk tables hold thousands
            return tuple(data)
        return tuple(_decode(item, v, f"{where}[{i}]") for i, v in enumerate(data))
    if len(args) != len(data):
        raise ContractError(f"{where}: expected {len(args)} items, got {len(data)}")
    return tuple(_decode(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, data, strict=True)))


def _decode_dict(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise ContractError(f"{where}: expected a table, got {type(data).__name__}")
    key_type, value_type = typing.get_args(kind) or (str, Any)
    return {_decode(key_type, k, where): _decode(value_type, v, f"{where}.{k}") for k, v in data.items()}


def _decode_dataclass(cls: type, data: Any, where: str) -> Any:
    if isinstance(data, cls):
        return data
    if not isinstance(data, Mapping):
        raise ContractError(f"{where}: expected a table, got {type(data).__name__}")
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    for key in data:
        if key not in fields:
            if remedy := getattr(cls, "REMOVED", {}).get(key):
                raise UnknownKeyError(f"{where}: '{key}' was removed: {remedy}")
            close = nearest(str(key), fields)
            hint = f"; did you mean '{close}'?" if close else f"; known keys: {', '.join(sorted(fields))}"
            raise UnknownKeyError(f"{where}: unknown key '{key}'{hint}")
    hints = _hints(cls)
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _decode(hints[name], data[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ContractError(f"{where}: key '{name}' is missing")
    try:
        return cls(**values)
    except ContractError:
        raise
    except ValueError as exc:
        raise ContractError(f"{where}: {exc}") from exc


def _decode_plain(kind: type, data: Any, where: str) -> Any:
    if issubclass(kind, enum.Enum):
        try:
            return kind(data)
        except ValueError as exc:
            raise ContractError(f"{where}: {data!r} is not one of {[m.value for m in kind]}") from exc
    if kind is float and type(data) in (int, float):
        if not math.isfinite(data):
            raise ContractError(f"{where}: {data} is not a finite number")
        return float(data)
    if kind is Path and isinstance(data, str):
        return Path(data)
    if kind is bytes and isinstance(data, str):
        try:
            return bytes.fromhex(data)
        except ValueError as exc:
            raise ContractError(f"{where}: {data[:40]!r} is not hex") from exc
    if kind in (int, str, bool, type(None)) and type(data) is kind:
        return data
    raise ContractError(f"{where}: expected {kind.__name__}, got {type(data).__name__} {str(data)[:40]!r}")
