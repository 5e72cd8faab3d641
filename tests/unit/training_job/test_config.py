"""The job's file: what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinemill.errors import ConfigError, UnknownKeyError
from kinemill.training.job.config import load_config

GOOD = 'run = "run"\n[data]\nmanifest = "m"\nstore = "s3://corpus"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


def test_the_run_folder_is_relative_to_the_file(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, GOOD)).run == str(tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + 'maniffest = "x"\n', "did you mean 'manifest'"),
        (GOOD + "width = 0\n", "data.width is 0"),
        (GOOD + "cameras = []\n", "name at least one camera"),
        (GOOD + 'mode = "ram"\n', "node_mmap, remote_parquet, in_memory"),
        (GOOD + "[launch]\nnnodes = 2\n", "rdzv_endpoint"),
        (GOOD + "[train]\nsteps = 'many'\n", "expected int"),
        ('run = "run"\n', "key 'data' is missing"),
        ("run = ", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_starts(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(write(tmp_path, text))


def test_an_unknown_key_is_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(UnknownKeyError):
        load_config(write(tmp_path, GOOD + "[optimiser]\n"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read"):
        load_config(tmp_path / "nowhere.toml")
