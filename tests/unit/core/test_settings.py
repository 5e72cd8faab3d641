"""Settings from file, environment and flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kinemill.errors import ConfigError, UnknownKeyError
from kinemill.settings import CoreSettings, cache_dir, hide_secrets, load_settings, read_env_file


@dataclass(frozen=True, slots=True)
class Table:
    timeout_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Demo:
    workers: int = field(default=1, metadata={"env": "DEMO_WORKERS"})
    verbose: bool = field(default=False, metadata={"env": "DEMO_VERBOSE"})
    table: Table = Table()


@dataclass(frozen=True, slots=True)
class Maybe:
    nodes: int | None = field(default=None, metadata={"env": "DEMO_NODES"})
    gbps: float | None = field(default=None, metadata={"env": "DEMO_GBPS"})
    label: str | None = field(default=None, metadata={"env": "DEMO_LABEL"})


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_later_sources_win_and_each_value_says_where_it_came_from(tmp_path: Path) -> None:
    file = write(tmp_path / "demo.toml", "workers = 2\nverbose = true\n[table]\ntimeout_s = 3\n")
    loaded = load_settings(
        Demo,
        plane="demo",
        environ={"KINEMILL_CONFIG_DIR": str(tmp_path), "DEMO_WORKERS": "4"},
        overrides={"table.timeout_s": 5.0, "verbose": None},
    )
    assert loaded.value == Demo(4, True, Table(5.0))
    assert loaded.rows() == [
        ("workers", 4, "$DEMO_WORKERS"),
        ("verbose", True, str(file)),
        ("table.timeout_s", 5.0, "command line"),
    ]


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    loaded = load_settings(Demo, plane="demo", environ={"KINEMILL_CONFIG_DIR": str(tmp_path)})
    assert loaded.value == Demo()
    assert {origin for _, _, origin in loaded.rows()} == {"default"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("wokers = 2", "did you mean 'workers'"),
        ("[tabel]\ntimeout_s = 1", "did you mean 'table'"),
        ("[table]\ntimeout = 1", "did you mean 'timeout_s'"),
        ("workers = 'two'", "expected int"),
        ("workers = ", "not valid TOML"),
        ("db_password = 'x'", "0600 environment file"),
        ("[table]\nurl = ['postgresql://u:hunter2@h/d']", r"'table\.url' is a URL with a password"),
    ],
)
def test_a_bad_file_is_refused_and_named(tmp_path: Path, text: str, match: str) -> None:
    file = write(tmp_path / "demo.toml", text)
    with pytest.raises(ConfigError, match=match) as caught:
        load_settings(Demo, plane="demo", path=file, environ={})
    assert str(file) in str(caught.value)
    assert "'x'" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such settings file"):
        load_settings(Demo, plane="demo", path=tmp_path / "nobody.toml")


@pytest.mark.parametrize(("name", "value"), [("DEMO_WORKERS", "many"), ("DEMO_VERBOSE", "perhaps")])
def test_a_bad_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load_settings(Demo, plane="demo", environ={name: value})


def test_a_setting_that_may_be_left_out_is_read_from_its_variable_by_its_type(tmp_path: Path) -> None:
    environ = {"KINEMILL_CONFIG_DIR": str(tmp_path), "DEMO_NODES": "5", "DEMO_GBPS": "3200", "DEMO_LABEL": "5"}
    assert load_settings(Maybe, plane="demo", environ=environ).value == Maybe(5, 3200.0, "5")
    with pytest.raises(ConfigError, match=r"\$DEMO_NODES: 'some' is not a number"):
        load_settings(Maybe, plane="demo", environ={**environ, "DEMO_NODES": "some"})


def test_an_override_that_nobody_declared_is_refused() -> None:
    with pytest.raises(UnknownKeyError):
        load_settings(Demo, plane="demo", environ={}, overrides={"wrokers": 1})


@dataclass(frozen=True, slots=True)
class Place:
    url: str = field(default="", metadata={"env": "DEMO_URL"})


def test_a_password_comes_by_the_environment_and_neither_by_a_flag_nor_by_the_file(tmp_path: Path) -> None:
    url = "postgresql://kim:geheim@db/x"
    environ = {"KINEMILL_CONFIG_DIR": str(tmp_path)}
    assert load_settings(Place, plane="demo", environ={**environ, "DEMO_URL": url}).value.url == url
    with pytest.raises(ConfigError, match="anybody may read a command line") as caught:
        load_settings(Place, plane="demo", environ=environ, overrides={"url": url})
    assert "geheim" not in str(caught.value)
    write(tmp_path / "demo.toml", f"url = '{url}'")
    with pytest.raises(ConfigError, match="settings hold no secrets") as caught:
        load_settings(Place, plane="demo", environ=environ)
    assert "geheim" not in str(caught.value)
    write(tmp_path / "demo.toml", "url = 'postgresql://kim@db/x'")
    flag = {"url": "postgresql://ann@db/x"}
    assert load_settings(Place, plane="demo", environ=environ, overrides=flag).value.url == flag["url"]


@pytest.mark.parametrize("name", ["state_dir", "run_dir"])
def test_a_key_that_was_removed_is_named_as_that_with_what_to_do(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / "core.toml", f"{name} = '/srv/kinemill'")
    with pytest.raises(UnknownKeyError) as caught:
        load_settings(CoreSettings, plane="core", environ={"KINEMILL_CONFIG_DIR": str(tmp_path)})
    assert str(caught.value).startswith(f"{file}: '{name}' was removed: it did nothing; take it out")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["share_dir", "data_dir", "log_file", "level"])
def test_a_key_that_only_resembles_another_gets_the_list_and_no_guess(tmp_path: Path, name: str) -> None:
    write(tmp_path / "core.toml", f"{name} = 'x'")
    with pytest.raises(UnknownKeyError, match="known keys: cache_dir, log_format, log_level") as caught:
        load_settings(CoreSettings, plane="core", environ={"KINEMILL_CONFIG_DIR": str(tmp_path)})
    assert "did you mean" not in str(caught.value)


def test_core_settings_refuse_a_level_that_logging_lacks_and_name_where_it_stands(tmp_path: Path) -> None:
    environ = {"KINEMILL_CONFIG_DIR": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"^\$KINEMILL_LOG_LEVEL: log_level 'loud'"):
        load_settings(CoreSettings, plane="core", environ={**environ, "KINEMILL_LOG_LEVEL": "loud"})
    file = write(tmp_path / "core.toml", "log_level = 'loud'")
    with pytest.raises(ConfigError, match=rf"^{file}: log_level 'loud'"):
        load_settings(CoreSettings, plane="core", environ=environ)


def test_the_cache_goes_where_it_is_told(tmp_path: Path) -> None:
    write(tmp_path / "core.toml", "cache_dir = '/from/the/file'")
    environ = {"KINEMILL_CONFIG_DIR": str(tmp_path)}
    assert cache_dir(environ) == Path("/from/the/file")
    assert cache_dir({**environ, "KINEMILL_CACHE_DIR": str(tmp_path)}) == tmp_path


def test_without_a_word_the_cache_is_the_systems_for_root_and_the_users_own_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"KINEMILL_CONFIG_DIR": str(tmp_path), "XDG_CACHE_HOME": "/home-of-caches"}
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert cache_dir(environ) == Path("/var/cache/kinemill")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert cache_dir(environ) == Path("/home-of-caches/kinemill")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://kim:p%40ss@db:5432/x", "postgresql://kim:***@db:5432/x"),
        (
            "postgresql://kim@db/x?sslpassword=abc&sslmode=require",
            "postgresql://kim@db/x?sslpassword=***&sslmode=require",
        ),
        ("https://:token-in-place@host/", "https://:***@host/"),
        ("s3://b/p?endpoint=http://k:s@h:1", "s3://b/p?endpoint=http://k:***@h:1"),
        ("s3://b/p?endpoint=http://h:8333&region=x", "s3://b/p?endpoint=http://h:8333&region=x"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("two lines: no URL @ all", "two lines: no URL @ all"),
    ],
)
def test_secrets_of_urls_are_hidden_and_nothing_else(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown


def test_an_env_file_is_read_only_when_nobody_else_can(tmp_path: Path) -> None:
    file = write(tmp_path / "secrets.env", "# comment\n\nexport A=1\nB='two words'\n")
    file.chmod(0o600)
    assert read_env_file(file) == {"A": "1", "B": "two words"}
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_env_file(file)


def test_an_env_file_behind_a_link_or_with_a_bad_line_is_refused_without_showing_it(tmp_path: Path) -> None:
    file = write(tmp_path / "s.env", "hunter2\n")
    file.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(file)
    with pytest.raises(ConfigError, match="cannot read"):
        read_env_file(link)
    with pytest.raises(ConfigError, match=":1: expected NAME=value") as caught:
        read_env_file(file)
    assert "hunter2" not in str(caught.value)
