"""What is installed beside us: pinned with hashes, licensed, unchanged; and our own wheel."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def chain() -> Any:
    path = ROOT / "scripts" / "supply_chain.py"
    spec = importlib.util.spec_from_file_location("supply_chain", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pinned(chain: Any) -> dict[str, str]:
    """Versions of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {chain.canonical(name): version for name, version in pairs}


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_a_lock_has_hashes_and_no_address(chain: Any, name: str) -> None:
    text = (ROOT / name).read_text()
    assert not re.search(r"://|@|--(extra-)?index|--find-links|(?<!scripts)/", text)
    pins = chain.read_lock(ROOT / name)
    assert len(pins) > 40
    for package, (version, hashes) in pins.items():
        assert version == pinned(chain)[package]
        assert hashes
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes)
    assert chain.lock_text(name, pins).splitlines()[2:] == text.splitlines()[2:]


def test_the_locks_have_all_that_we_ask_for(chain: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(wanted: list[str]) -> set[str]:
        return {chain.canonical(re.split(r"[\[<>=!~ ;]", one)[0]) for one in wanted} - {"icql"}

    core = set(chain.read_lock(ROOT / "requirements.lock"))
    every = set(chain.read_lock(ROOT / "requirements-dev.lock"))
    assert names(project["dependencies"]) <= core <= every
    extras = project["optional-dependencies"]
    # what only some machines or services need is not installed by `make setup`
    locked = [x for name in extras.keys() - {"cuda", "wandb", "trackio"} for x in extras[name]]
    assert names(locked) <= every
    assert every == set(pinned(chain))


def test_the_list_of_licences_is_complete(chain: Any) -> None:
    rows = dict(re.findall(r"(?m)^\| ([a-z0-9-]+) \| (.+) \|$", chain.LICENCES.read_text()))
    del rows["package"]
    assert set(rows) == set(chain.read_lock(ROOT / "requirements-dev.lock"))
    unknown = [name for name, licence in rows.items() if licence.startswith("not ")]
    assert unknown == [], "look up what they do not say"


def install(folder: Path, content: bytes) -> Path:
    """A package of one file, as pip leaves it."""
    info = folder / "made_up-1.0.dist-info"
    info.mkdir()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
    (info / "RECORD").write_text(
        f"made_up.py,sha256={digest},{len(content)}\n{info.name}/RECORD,,\n"
    )
    (folder / "made_up.py").write_bytes(content)
    return folder / "made_up.py"


def test_the_audit_sees_other_versions_and_changed_files(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = install(tmp_path, b"x = 1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    pins = {"made-up": ("1.0", ("0" * 64,))}
    assert [*chain.other_versions(pins), *chain.changed_files(pins)] == []
    file.write_bytes(b"x = 2\n")
    assert list(chain.changed_files(pins)) == [
        "made-up: made_up.py was changed since it was installed"
    ]
    file.unlink()
    assert list(chain.changed_files(pins)) == ["made-up: made_up.py is missing"]
    assert list(chain.other_versions({"made-up": ("1.1", ()), "no-such": ("1", ())})) == [
        "made-up: 1.0 is installed, 1.1 in the lock",
        "no-such: not installed",
    ]


NONE = """{"dependencies": [{"name": "jax", "version": "1.0", "vulns": []}], "fixes": []}"""
SOME = """{"dependencies": [{"name": "jax", "version": "1.0", "vulns": [{"id": "PYSEC-1"}]},
           {"name": "own", "skip_reason": "not on PyPI"}], "fixes": []}"""
OFFLINE = "ERROR:pip_audit._cli:could not connect to PyPI's vulnerability feed"


@pytest.mark.parametrize(
    ("out", "err", "left", "code", "words"),
    [
        (NONE, "No known vulnerabilities found", 0, 0, "known vulnerabilities: 0 in 1 packages"),
        (SOME, "Found 1 known vulnerability in 1 package", 1, 1, "jax 1.0: PYSEC-1"),
        (SOME, "", 1, 1, "1 in 2 packages, not asked of own"),
        ("", OFFLINE, 1, 0, f"not looked for (pip-audit could not ask: {OFFLINE})"),
        ("[]", "", 0, 0, "not looked for (pip-audit could not ask: it says nothing)"),
    ],
    ids=["none", "some", "left out", "offline", "nonsense"],
)
def test_pip_audit_is_asked_and_understood(
    chain: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    out: str,
    err: str,
    left: int,
    code: int,
    words: str,
) -> None:
    """A made-up one, found on PATH, that wants to be asked about the lock with its hashes."""
    made = tmp_path / "pip-audit"
    made.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "assert '--require-hashes' in sys.argv\n"
        "assert sys.argv[-1].endswith('requirements-dev.lock')\n"
        f"print({out!r})\nprint({err!r}, file=sys.stderr)\nsys.exit({left})\n"
    )
    made.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(chain.util, "find_spec", lambda name: None)
    assert chain.known_vulnerabilities() == code
    assert words in capsys.readouterr().out


def test_without_pip_audit_that_is_said(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(chain.util, "find_spec", lambda name: None)
    assert chain.known_vulnerabilities() == 0
    assert "not looked for (pip-audit is not installed)" in capsys.readouterr().out


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    reason = "hatchling builds wheels: pip install -e '.[dev]'"
    builders = pytest.importorskip("hatchling.builders.wheel", reason=reason)
    made = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(next(iter(made))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        assert b"\nLicense-Expression: Apache-2.0\n" in wheel.read(metadata)
    source = ROOT / "src"
    files = (path for path in (source / "icql").rglob("*") if path.is_file())
    assert names == {
        path.relative_to(source).as_posix() for path in files if "__pycache__" not in path.parts
    }
    for kind in (".toml", ".css", ".js", ".html", ".npz", ".json"):
        assert any(name.endswith(kind) for name in names), kind
