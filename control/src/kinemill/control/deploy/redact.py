"""Takes secrets out of text before it is kept or shown.

Ansible hides what a task marks `no_log`. A secret still gets out where a task forgets the mark, a template's difference
is shown, or a command repeats its input in an error. So what the inventory keeps encrypted is looked for in everything
that leaves a run, in the forms in which it may stand there.
"""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["HIDDEN", "SHORTEST", "Redactor"]

HIDDEN = "[hidden]"
SHORTEST = 4
"""Shorter text is found everywhere by chance; it is no secret."""

# A line of a secret of many lines stands alone in a difference; shorter lines are found by chance.
_SHORTEST_LINE = 8
# Ansible wraps warnings at the terminal's width, in the middle of words too.
_BREAK = r"(?:\r?\n)?"
_LONGEST_WRAPPED = 400


class Redactor:
    """Replaces secrets by `[hidden]`.

    Args:
        secrets: Text that must not be kept; shorter than `SHORTEST` characters is left alone.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[str] = set()
        for secret in secrets:
            forms |= _forms(secret)
        # Longest first: where one secret holds another, the whole of it must go.
        patterns = [_pattern(form) for form in sorted(forms, key=len, reverse=True)]
        self._found = re.compile("|".join(patterns)) if patterns else None

    def text(self, text: str) -> str:
        """`text` without secrets."""
        return self._found.sub(HIDDEN, text) if self._found is not None else text

    def value(self, value: Any) -> Any:
        """Plain data without secrets, in keys too."""
        if self._found is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, int | float) and self.text(str(value)) != str(value):
            return HIDDEN
        return value


def _forms(secret: str) -> set[str]:
    """The ways in which a secret may be written."""
    plain = {secret.strip(), *(line.strip() for line in secret.splitlines() if len(line.strip()) >= _SHORTEST_LINE)}
    forms: set[str] = set()
    for text in plain:
        if len(text) < SHORTEST:
            continue
        forms |= {text, html.escape(text), urllib.parse.quote(text, safe=""), urllib.parse.quote_plus(text)}
        forms |= {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]}
        forms.add(text.replace("'", "''"))
        forms |= _base64_forms(text.encode())
    return forms


def _base64_forms(data: bytes) -> set[str]:
    """What is common to every base64 text whose content holds `data`, for each of the three ways it may be aligned."""
    forms: set[str] = set()
    for lead in range(3):
        encoded = base64.b64encode(b"\0" * lead + data).decode()
        # The first characters mix with what stands before, the last with what comes after.
        inner = encoded[(0, 2, 3)[lead] :].rstrip("=")
        inner = inner[: len(inner) - (1 if (lead + len(data)) % 3 else 0)]
        if len(inner) >= _SHORTEST_LINE:
            forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    return forms


def _pattern(form: str) -> str:
    """A pattern that finds a form also where it was wrapped or folded."""
    if len(form) > _LONGEST_WRAPPED:
        return re.escape(form)
    parts = [_BREAK.join(map(re.escape, word)) for word in re.split(r"\s+", form) if word]
    return r"(?:\s|\\[nrt])+".join(parts)
