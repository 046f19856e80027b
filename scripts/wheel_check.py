"""Does the wheel stand alone? Built, installed with the core dependencies only, and used.

    python scripts/wheel_check.py

In a folder that is gone afterwards: a new virtual environment gets the wheels of requirements.lock,
compared with their hashes, then ours without looking for anything else; there `icql --help` and a
tiny training run, far from this source tree.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
TRAIN = "train --algo bc --steps 2 --episodes 0 --policy.hidden 8 --batch-size 8 --out run --json"


def main() -> None:
    """Build, install and run; ends with an error at the first thing that fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder)
        print(f"built      {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB")
        python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
        venv.create(folder / "venv", with_pip=True)
        lock = ("--require-hashes", "--only-binary", ":all:", "-r", str(ROOT / "requirements.lock"))
        call(folder, python, *PIP, "install", *lock)
        call(folder, python, *PIP, "install", "--no-deps", "--no-index", str(wheel))
        call(folder, python, *PIP, "check")
        print("installed  with requirements.lock, hashes compared; pip check finds nothing missing")
        said = call(folder, python.with_name("icql"), "--help")
        assert "usage: icql COMMAND" in said
        result = json.loads(call(folder, python.with_name("icql"), *TRAIN.split()).splitlines()[-1])
        assert result["steps"] == 2
        print("ran        icql --help, and a training of 2 updates")


def build(folder: Path) -> Path:
    """The wheel; by the hatchling of this environment, where it has one, else by a fetched one."""
    here = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    options = ["wheel", "--no-deps", *here, "--wheel-dir", str(folder), str(ROOT)]
    call(ROOT, Path(sys.executable), *PIP, *options)
    (wheel,) = folder.glob("*.whl")
    return wheel


def call(folder: Path, program: Path, *arguments: str) -> str:
    """What a program says; it sees nothing of this source tree."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"ICQL_CACHE": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([program, *arguments], cwd=folder, env=env, stdout=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(f"{program.name} {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout.decode()


if __name__ == "__main__":
    main()
