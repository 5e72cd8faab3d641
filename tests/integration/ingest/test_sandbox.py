"""The child that parses: what it cannot reach, and what happens when it is abused."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinemill.errors import EnvironmentFault, UnavailableError
from kinemill.pipelines.adapters import Source, load_vendor
from kinemill.pipelines.ingest.sandbox import Sandbox, SandboxLimits, VendorDataError
from kinemill.process import ProcessId
from support.ingest import environment, only_source, shared_drops

VENDOR = load_vendor("auto")

HOSTILE = '''
"""An adapter whose `inspect` does whatever its file says: a stand-in for a decoder that was taken over."""
from kinemill.pipelines.adapters.base import Finding, Level, Source, SourceFacts

class Adapter:
    name = "hostile"
    version = 1

    def find(self, root, files):
        return []

    def inspect(self, source, vendor):
        scope = {}
        exec(source.path.read_text(), scope)
        return SourceFacts(self.name, (), (Finding("answer", Level.INFO, str(scope.get("answer", ""))),))

    def read(self, source, vendor, index):
        raise NotImplementedError

ADAPTER = Adapter()
'''


@contextmanager
def hostile(tmp_path: Path) -> Iterator[None]:
    """Make the adapter above one of the package's, for children and for nobody else."""
    extra = tmp_path / "extra"
    extra.mkdir(exist_ok=True)
    (extra / "hostile_adapter.py").write_text(HOSTILE)
    (extra / "sitecustomize.py").write_text(
        textwrap.dedent(
            """
            import os
            if os.environ.get("PYTHONUNBUFFERED"):  # a sandbox child
                import kinemill.pipelines.adapters.registry as registry
                known = registry.adapters
                def adapters():
                    import hostile_adapter
                    return {**known(), "hostile": hostile_adapter.ADAPTER}
                registry.adapters = adapters
            """
        )
    )
    with environment(PYTHONPATH=str(extra)):
        yield


def run(tmp_path: Path, code: str, **limits: float) -> str:
    """What `answer` is after `code` ran inside the sandbox."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    with hostile(tmp_path), Sandbox(SandboxLimits(**limits)) as box:  # type: ignore[arg-type]
        return box.inspect(Source("hostile", "script.py", script, (script,)), VENDOR).findings[0].message


def test_no_credential_of_ours_is_in_its_environment(tmp_path: Path) -> None:
    with environment(AWS_SECRET_ACCESS_KEY="hunter2", KINEMILL_CATALOG_URL="postgresql://x", HTTPS_PROXY="p"):
        seen = run(tmp_path, "import os; answer = sorted(os.environ)")

    assert "hunter2" not in seen
    for name in ("AWS", "KINEMILL", "PROXY", "HOME", "PG"):
        assert name not in seen


def test_it_has_no_network(tmp_path: Path) -> None:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        answer = run(
            tmp_path,
            f"""
            import socket
            try:
                socket.create_connection(("127.0.0.1", {port}), timeout=2)
                answer = "connected"
            except OSError as exc:
                answer = "refused: " + type(exc).__name__
            """,
        )

    with Sandbox() as box:
        box.inspect(only_source(shared_drops()["gantry_ros2"].path / "run_000", "ros2"), VENDOR)
        network = box.network
    if network == "shared":
        from support.layers import skip

        skip("this kernel gives a process no network of its own", run="make test as root, or with user namespaces")
    assert answer.startswith("refused")


def test_it_inherits_no_open_file(tmp_path: Path) -> None:
    code = """
        import os
        answer = [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3, 20) if os.path.exists(f"/proc/self/fd/{fd}")]
    """
    with (tmp_path / "secret").open("w"):
        answer = run(tmp_path, code)

    assert "secret" not in answer


@pytest.mark.parametrize(
    ("code", "limits", "wanted"),
    [
        ("x = bytearray(8 << 30)", {"memory_bytes": 2 << 30}, "too_much_memory"),
        ("while True: pass", {"cpu_s": 3}, "too_slow"),
        ("import time; time.sleep(100)", {"wall_s": 3}, "too_slow"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", {}, "parser_died"),
        ("raise RuntimeError('boom')", {}, "unreadable"),
        ("raise RecursionError('deep')", {}, "unreadable"),
    ],
    ids=["memory", "cpu", "wall", "crash", "error", "recursion"],
)
def test_abuse_ends_as_a_fault_of_the_file(tmp_path: Path, code: str, limits: dict[str, float], wanted: str) -> None:
    with pytest.raises(VendorDataError) as caught:
        run(tmp_path, code, **limits)

    assert caught.value.code == wanted
    assert "script.py" in str(caught.value)


def test_a_kill_from_outside_is_not_held_against_the_file(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="somebody killed"):
        run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")


def test_stopped_by_us_it_is_not_held_against_the_file(tmp_path: Path) -> None:
    import threading

    script = tmp_path / "script.py"
    script.write_text("import time; time.sleep(100)")
    with hostile(tmp_path), Sandbox() as box:
        box.inspect(only_source(shared_drops()["gantry_ros2"].path / "run_000", "ros2"), VENDOR)
        threading.Timer(0.3, box.kill).start()
        with pytest.raises(UnavailableError, match="was stopped"):
            box.inspect(Source("hostile", "script.py", script, (script,)), VENDOR)


def test_a_crash_does_not_stop_the_next_request(tmp_path: Path) -> None:
    good = only_source(shared_drops()["gantry_ros2"].path / "run_000", "ros2")
    script = tmp_path / "s.py"
    script.write_text("import os; os.abort()")
    with hostile(tmp_path), Sandbox() as box:
        with pytest.raises(VendorDataError, match="SIGABRT"):
            box.inspect(Source("hostile", "s.py", script, (script,)), VENDOR)
        assert box.inspect(good, VENDOR).episodes[0].messages > 300


def test_a_library_that_prints_does_not_break_the_answer(tmp_path: Path) -> None:
    assert run(tmp_path, "import os; print('noise'); os.write(1, b'{\"result\": 1}\\n'); answer = 'whole'") == "whole"


def test_a_file_larger_than_allowed_is_refused(tmp_path: Path) -> None:
    source = only_source(shared_drops()["twinarm_aloha"].path / "episode_1.hdf5", "hdf5")
    vendor = load_vendor("twinarm_aloha")
    with Sandbox(SandboxLimits(file_bytes=20_000)) as box, pytest.raises((VendorDataError, EnvironmentFault)) as caught:
        box.convert(source, vendor, 0, episode_id=str(uuid.UUID(int=7)), profile="vla", out=str(tmp_path / "e.mcap"))

    assert "larger than" in str(caught.value) or "too large" in str(caught.value)
    assert not (tmp_path / "e.mcap").exists()


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    drop = shared_drops()["gantry_ros2"].path / "run_000"
    code = f"""
import os, sys
from pathlib import Path
from kinemill.pipelines.adapters import find_sources, load_vendor
from kinemill.pipelines.ingest.sandbox import Sandbox
box = Sandbox()
source = find_sources(Path({str(drop)!r}), "ros2")[0][0]
box.inspect(source, load_vendor("auto"))
print(box._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    child = int(result.stdout.split()[0])

    deadline = time.monotonic() + 120
    while ProcessId.of(child) is not None:
        assert time.monotonic() < deadline, f"child {child} outlived its parent {os.getpid()}"
        time.sleep(0.05)
