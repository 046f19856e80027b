"""What is installed beside this package: pinned, with hashes; under which licences; unchanged?

    python scripts/supply_chain.py lock       # write requirements.lock and requirements-dev.lock
    python scripts/supply_chain.py licences   # write docs/licences.md from what is installed
    python scripts/supply_chain.py audit      # compare what is installed with the lock and RECORD

A lock names versions and SHA-256 of wheels, and no address: pip's own configuration says where they
come from, and the hash whether they are the same. It is of one platform, that it was made on.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal

import tyro

ROOT = Path(__file__).resolve().parents[1]
LOCKS = {"requirements.lock": "", "requirements-dev.lock": "[dev]"}  # and the extras in them
LICENCES = ROOT / "docs" / "licences.md"
OWN = "icql"
Pins = dict[str, tuple[str, tuple[str, ...]]]  # name → version, SHA-256 of what may be installed


def main(do: tyro.conf.Positional[Literal["lock", "licences", "audit"]]) -> int:
    """Write the locks or the list of licences, or compare what is installed; 1 where it differs."""
    if do == "lock":
        for name, extras in LOCKS.items():
            (ROOT / name).write_text(lock_text(name, resolved(extras)))
        return 0
    pins = read_lock(ROOT / "requirements-dev.lock")
    if do == "licences":
        LICENCES.write_text(licence_text(pins))
        return 0
    wrong = [*other_versions(pins), *changed_files(pins)]
    for line in wrong:
        print(line)
    print(f"{len(pins)} packages compared with the lock and their RECORD: {len(wrong)} differences")
    return max(int(bool(wrong)), known_vulnerabilities())


# --- Locks ----------------------------------------------------------------------------------------


def resolved(extras: str) -> Pins:
    """What pip would install, of the versions in constraints.txt; nothing is."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--report", "-"]
    command += ["--constraint", "constraints.txt", f".{extras}"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: Pins = {}
    for item in json.loads(done.stdout)["install"]:
        name = canonical(item["metadata"]["name"])
        if name != OWN:
            digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
            found[name] = item["metadata"]["version"], (digest,)
    return found


def lock_text(name: str, pins: Pins) -> str:
    """A lock as pip reads it."""
    python = ".".join(platform.python_version_tuple()[:2])
    head = f"""\
# Made by scripts/supply_chain.py for Python {python} on {platform.system()} {platform.machine()}.
# Use with: pip install --require-hashes -r {name}
"""
    lines = [
        f"{package}=={version}" + "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests)
        for package, (version, digests) in sorted(pins.items())
    ]
    return head + "\n".join(lines) + "\n"


def read_lock(path: Path) -> Pins:
    """The packages of a lock."""
    text = re.sub(r"(?m)^#.*$", "", path.read_text()).replace("\\\n", " ")
    found: Pins = {}
    for line in filter(str.strip, text.splitlines()):
        pin, *hashes = line.split()
        name, _, version = pin.partition("==")
        found[canonical(name)] = version, tuple(x.removeprefix("--hash=sha256:") for x in hashes)
    return found


def canonical(name: str) -> str:
    """A package's name as indexes know it."""
    return re.sub(r"[-_.]+", "-", name).lower()


# --- Licences -------------------------------------------------------------------------------------


def licence_text(pins: Iterable[str]) -> str:
    """A table of every package and what it says of its licence."""
    rows = "".join(f"| {name} | {licence_of(name)} |\n" for name in sorted(pins))
    return f"""\
# Licences of what is installed beside icql

As each package of requirements-dev.lock states its own in its metadata; made by
`python scripts/supply_chain.py licences`. icql itself is under Apache-2.0.

| package | licence |
|---|---|
{rows}"""


def licence_of(name: str) -> str:
    """What a package says of its licence: an expression, a classifier, or a first line."""
    try:
        said = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return "not installed where this was made"
    if "License-Expression" in said:
        return said["License-Expression"]
    marks = [x for x in said.get_all("Classifier") or () if x.startswith("License :: ")]
    if named := sorted({x.rpartition(" :: ")[2] for x in marks} - {"OSI Approved"}):
        return ", ".join(named)
    first = said["License"].strip().splitlines() if "License" in said else []
    return first[0][:80].replace("|", "/") if first else "not stated"


# --- Audit ----------------------------------------------------------------------------------------


def other_versions(pins: Pins) -> Iterator[str]:
    """Packages that are missing or not of the version of the lock."""
    for name, (version, _) in pins.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield f"{name}: not installed"
            continue
        if found != version:
            yield f"{name}: {found} is installed, {version} in the lock"


def changed_files(names: Iterable[str]) -> Iterator[str]:
    """Files that are not what their package's RECORD says."""
    for name in names:
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        record = installed.read_text("RECORD")
        if record is None:
            yield f"{name}: has no RECORD to compare with"
            continue
        for path, digest, _ in csv.reader(record.splitlines()):
            if digest.startswith("sha256="):
                yield from _compared(name, Path(str(installed.locate_file(path))), digest[7:])


def _compared(name: str, path: Path, expected: str) -> Iterator[str]:
    try:
        found = hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        yield f"{name}: {path.name} is missing"
        return
    if base64.urlsafe_b64encode(found).rstrip(b"=").decode() != expected:
        yield f"{name}: {path.name} was changed since it was installed"


def known_vulnerabilities() -> int:
    """Ask pip-audit, which asks the network: 1 where it knows of any.

    0 also where it cannot be asked, which is said.
    """
    if (command := _pip_audit()) is None:
        print("known vulnerabilities: not looked for (pip-audit is not installed)")
        return 0
    command += ["--disable-pip", "--require-hashes", "--format", "json"]
    done = subprocess.run(
        [*command, "--requirement", str(ROOT / "requirements-dev.lock")],
        capture_output=True,
        text=True,
        check=False,
    )
    try:  # its words change, and speak of vulnerabilities when it has not looked for any
        answers = json.loads(done.stdout)["dependencies"]
        found = [(one["name"], one["version"], bad["id"]) for one in answers for bad in _bad(one)]
        skipped = [one["name"] for one in answers if "skip_reason" in one]
    except (ValueError, KeyError, TypeError):
        reason = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        print(f"known vulnerabilities: not looked for (pip-audit could not ask: {reason})")
        return 0
    for name, version, which in found:
        print(f"{name} {version}: {which}")
    left = f", not asked of {', '.join(skipped)}" if skipped else ""
    print(f"known vulnerabilities: {len(found)} in {len(answers)} packages{left}")
    return int(bool(found))


def _pip_audit() -> list[str] | None:
    """How to call pip-audit: as it is installed here, or for itself."""
    if util.find_spec("pip_audit") is not None:
        return [sys.executable, "-m", "pip_audit"]
    return None if (path := shutil.which("pip-audit")) is None else [path]


def _bad(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return list(answer.get("vulns", ()))


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
