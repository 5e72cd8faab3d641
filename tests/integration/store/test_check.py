"""`kinemill store check`: passes an honest store, names each lie of a lying one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from kinemill.cli import cli, run
from kinemill.contracts import ExitCode
from kinemill.errors import KinemillError
from kinemill.store import MemoryStore, open_store
from kinemill.store.check import StoreFinding, check_store
from kinemill.store.embedded import S3Server
from kinemill.store.s3 import S3Store
from support.store import Answer, Liar, liar_before


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as started:
        yield started


def failed(findings: list[StoreFinding]) -> set[str]:
    return {finding.check for finding in findings if not finding.ok}


def test_honest_stores_pass_and_are_left_clean(server: S3Server, tmp_path: Path) -> None:
    for store, racers in ((server.store("honest"), 8), (open_store(tmp_path.as_uri()), 32), (MemoryStore(), 32)):
        seen: list[str] = []
        findings = check_store(store, racers=racers, rounds=1, objects=120, progress=seen.append)
        assert failed(findings) == set(), findings
        assert seen == [finding.check for finding in findings]
        assert list(store.list()) == [], "the check left something behind"
        said = " ".join(finding.detail for finding in findings)
        in_pages = isinstance(store, S3Store)
        assert ("pages" in said, "in parts" in said) == (in_pages, in_pages), "it says what it did, and no more"


@pytest.mark.full("catalog")
def test_one_of_32_creators_wins_each_of_ten_races(server: S3Server) -> None:
    assert failed(check_store(server.store("races"), racers=32, rounds=10)) == set()


def ignores(header: str) -> Callable[[Liar], None]:
    return lambda liar: liar.drop_headers.add(header)


def answers(method: str, change: Callable[[str, Answer], Answer]) -> Callable[[Liar], None]:
    def apply(liar: Liar) -> None:
        liar.on_answer = lambda verb, path, answer: change(path, answer) if verb == method else answer

    return apply


def flip(path: str, answer: Answer) -> Answer:
    if "ranges" in path and answer.status == 206 and len(answer.body) > 100:
        answer.body = answer.body[:50] + bytes([answer.body[50] ^ 1]) + answer.body[51:]
    return answer


def lose_a_key(path: str, answer: Answer) -> Answer:
    if "list-type" in path and b"<Contents>" in answer.body and b"pages" in answer.body:
        start = answer.body.index(b"<Contents>")
        answer.body = answer.body[:start] + answer.body[answer.body.index(b"</Contents>", start) + 11 :]
    return answer


def short(path: str, answer: Answer) -> Answer:
    if answer.status == 206 and "ranges" in path:
        answer.body = answer.body[:-1] or answer.body
        answer.headers["content-length"] = str(len(answer.body))
    return answer


def other_etag(path: str, answer: Answer) -> Answer:
    if "etag" in answer.headers:
        answer.headers["etag"] = '"0123456789abcdef0123456789abcdef"'
    return answer


LIES: dict[str, tuple[Callable[[Liar], None], set[str]]] = {
    "create overwrites": (ignores("if-none-match"), {"create_if_absent", "create_race", "large_objects"}),
    "If-Match ignored": (ignores("if-match"), {"pinned_ranges", "replace_if_match", "replace_race"}),
    "ranges ignored": (ignores("range"), {"ranges", "pinned_ranges", "large_objects"}),
    "bytes flipped": (answers("GET", flip), {"ranges"}),
    "answers cut short": (answers("GET", short), {"ranges"}),
    "keys missing in lists": (answers("GET", lose_a_key), {"paging"}),
    "checksums ignored": (ignores("x-amz-checksum-sha256"), {"checksums"}),
    "head tells another etag": (answers("HEAD", other_etag), {"read_after_write", "large_objects"}),
    "secrets not checked": (lambda _: None, {"signatures"}),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found_and_named(server: S3Server, lie: str) -> None:
    apply, wanted = LIES[lie]
    with liar_before(server, f"lie-{abs(hash(lie))}") as liar:
        apply(liar)
        assert liar.store is not None
        findings = check_store(liar.store, racers=2, rounds=1, objects=101)
        # The proxy signs anew, so it never checks who asks: that lie is always there.
        assert failed(findings) - {"signatures"} == wanted - {"signatures"}, findings
        assert "signatures" in failed(findings)
        assert all(finding.detail for finding in findings)


def test_the_command_says_it_in_its_exit_code(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(cli, ["store", "check", "s3://corpus/cli", "--rounds", "1", "--racers", "2", "--json"])
    assert done.exit_code == ExitCode.OK
    report = json.loads(done.stdout)
    assert report["ok"]
    assert server.credentials.secret_key not in done.output
    with liar_before(server, "cli-lie") as liar:
        liar.drop_headers.add("if-match")
        url = f"s3://corpus/cli-lie?endpoint=http://127.0.0.1:{liar.port}"
        done = CliRunner().invoke(cli, ["store", "check", url, "--rounds", "1", "--racers", "2"])
        assert done.exit_code == ExitCode.FINDING
        assert "FAIL  replace_if_match" in done.stdout
        assert "do not use this store" in done.stdout
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert run(cli, "kinemill", ["store", "check", "s3://corpus/cli"]) == ExitCode.CONFIG
    assert "check the credentials" in capsys.readouterr().err


def test_a_store_that_cannot_be_used_is_an_error_not_a_finding(tmp_path: Path) -> None:
    from kinemill.store.config import Credentials, S3Address
    from kinemill.store.retry import Retry
    from kinemill.store.s3 import S3Store

    nobody = S3Store(S3Address("b", endpoint="http://127.0.0.1:9"), Credentials("k", "s"), retry=Retry(attempts=1))
    with pytest.raises(KinemillError, match="gave up"):
        check_store(nobody)
