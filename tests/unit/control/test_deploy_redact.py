"""A secret does not get out, in whatever form it stands in the text."""

from __future__ import annotations

import base64
import html
import json
import shlex
import textwrap
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill.control.deploy.redact import HIDDEN, SHORTEST, Redactor

AWKWARD = "p4ss'w\"ord <&> ümlaut/+="
FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": json.dumps,
    "JSON with its own letters": lambda text: json.dumps(text, ensure_ascii=False),
    "Python": repr,
    "YAML in single quotes": lambda text: text.replace("'", "''"),
    "HTML": html.escape,
    "a URL": lambda text: urllib.parse.quote(text, safe=""),
    "a form": urllib.parse.quote_plus,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "a shell's word": shlex.quote,
    "a shell's word as coreutils write it": lambda text: text.replace("'", "'\\''"),
    "a shell's word in JSON": lambda text: json.dumps(shlex.quote(text)),
    "a shell's word in HTML": lambda text: html.escape(shlex.quote(text)),
    "CSV": lambda text: text.replace('"', '""'),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_hidden(form: str) -> None:
    # given a line that holds a secret in some form
    line = f"before {FORMS[form](AWKWARD)} after"
    # when it is taken out
    seen = Redactor([AWKWARD]).text(line)
    # then neither the form nor the secret is left, and the rest is
    assert FORMS[form](AWKWARD).strip("\"'") not in seen
    assert AWKWARD not in seen
    assert HIDDEN in seen
    assert seen.startswith("before ")
    assert seen.endswith(" after")


@given(
    secret=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=9, max_size=40),
    before=st.binary(max_size=20),
    after=st.binary(max_size=20),
)
def test_base64_of_something_larger_gives_nothing_away(secret: str, before: bytes, after: bytes) -> None:
    # given a file's content in base64 that holds the secret somewhere
    text = base64.b64encode(before + secret.encode() + after).decode()
    # when it is taken out
    seen = Redactor([secret]).text(text)
    # then what is left does not decode to it, at any offset
    for part in seen.split(HIDDEN):
        for lead in range(4):
            whole = part[lead : lead + (len(part) - lead) // 4 * 4]
            assert secret.encode() not in base64.b64decode(whole + "=" * (-len(whole) % 4), validate=False)
    assert HIDDEN in seen


@given(
    secret=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=SHORTEST, max_size=60),
    width=st.integers(min_value=5, max_value=40),
)
def test_a_secret_that_was_wrapped_is_found(secret: str, width: int) -> None:
    # given a warning that the terminal's width broke anywhere
    text = "\n".join(textwrap.wrap(f"warning: {secret} is odd", width))
    # when it is taken out and the lines are put together again
    seen = Redactor([secret]).text(text)
    # then the secret is not among them
    assert HIDDEN in seen
    assert secret not in seen.replace("\n", "")


def test_each_line_of_a_key_is_hidden() -> None:
    # given a key of several lines, of which a difference shows each behind a plus
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n9w0BAQEFAASCBKcwggSj\n-----END KEY-----\n"
    shown = "\n".join(f"+{line}" for line in key.splitlines())
    # when it is taken out
    seen = Redactor([key]).text(shown)
    # then no line of it is left
    assert not [line for line in key.splitlines() if line in seen]


def test_data_is_searched_to_its_bottom() -> None:
    # given a result of a task
    result = {"results": [{"item": {"name": "root", "word": "s3cret-word"}}], "s3cret-word": 1, "pin": 482716, "rc": 0}
    # when secrets are taken out
    seen = Redactor(["s3cret-word", "482716"]).value(result)
    # then keys, lists and numbers have none, and the rest is as it was
    assert "s3cret-word" not in json.dumps(seen)
    assert seen["pin"] == HIDDEN
    assert seen["rc"] == 0
    assert seen["results"][0]["item"]["name"] == "root"


def test_the_longer_secret_goes_as_a_whole() -> None:
    # given a secret that begins another one
    redactor = Redactor(["pass", "password-of-the-database"])
    # when both stand there
    seen = redactor.text("password-of-the-database pass")
    # then no tail of the longer one is left
    assert seen == f"{HIDDEN} {HIDDEN}"


def test_much_text_takes_no_time_to_speak_of() -> None:
    # given a secret that repeats what the text is full of, which is what makes patterns slow
    redactor = Redactor(["a" * 200 + "b", "'" * 50 + "x", "\\" * 40 + "y"])
    text = ("a" * 1000 + "'" * 1000 + "\\" * 300) * 5
    # then it comes back as it is (the test's own deadline is the judge of time)
    assert redactor.text(text) == text


def test_what_is_too_short_is_left_alone() -> None:
    # given values that are found everywhere by chance
    redactor = Redactor(["", "  ", "7", "no"])
    # then nothing is hidden
    assert redactor.text("node 7 says no") == "node 7 says no"
