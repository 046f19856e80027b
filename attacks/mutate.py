"""Damage the files of one kind, one at a time, and read what is left; see `attacks.stored`.

python -m attacks.mutate COUNT SEED FOLDER KIND…    kinds that are made alike
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.damage import DAMAGES, HOWS, REMOVED, REPLACED
from attacks.stored import KINDS, Kind
from attacks.tally import Tally
from icql.errors import UserError
from icql.training import desk

PATIENCE = 120  # seconds that a damaged file may take to be read


class Subject:
    """One of a kind as it was written, another of it, and a place where it is damaged.

    Kinds that are made alike share what was made in a folder.
    """

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind, self.place = kind, folder / "place"
        self.whole, self.other = folder / "whole", folder / "other"
        for seed, path in ((1, self.other), (0, self.whole)):
            if not path.exists():
                shutil.rmtree(self.place, ignore_errors=True)
                self.place.mkdir(parents=True)
                kind.make(self.place, seed)  # in the same place: paths are read as well
                self.place.rename(path)
        self.expected = self.read(lambda: None)

    def read(self, damage: Callable[[], object]) -> Any:
        """What is read after `damage`, of a fresh copy."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.whole, self.place)
        damage()
        return self.kind.read(self.place)

    def files(self) -> list[Path]:
        """The files that are damaged, from the folder on."""
        return [path.relative_to(self.whole) for path in self._files(self.whole)]

    def _files(self, folder: Path) -> list[Path]:
        found = {path for pattern in self.kind.files for path in folder.glob(pattern)}
        return sorted(path for path in found if path.is_file())

    def damaged(self, name: Path, how: str, rng: random.Random) -> bool:
        """Damage one file in the place; False where it is as it was."""
        path, content = self.place / name, (self.whole / name).read_bytes()
        if how == REMOVED:
            path.unlink()
            return True
        if how == REPLACED:
            new = rng.choice(self._files(self.other) + self._files(self.whole)).read_bytes()
        else:
            new = DAMAGES[how](content, rng) if content else b"\0"
        path.write_bytes(new)
        return new != content

    def attack(self, how: str, rng: random.Random, tally: Tally) -> None:
        """Damage one file and count how that ends."""
        name, changed = rng.choice(self.files()), True

        def damage() -> None:
            nonlocal changed
            changed = self.damaged(name, how, rng)

        try:
            found = self.read(damage)
        except UserError as error:
            tally.attempts += 1
            tally.refused += 1
            if not str(error).strip():
                tally.fault("traceback", f"{name} {how}: a refusal without a word")
            return
        except Exception:
            tally.attempts += 1
            tally.fault("traceback", f"{name} {how}: {traceback.format_exc(limit=-3)}")
            return
        if not changed:
            return
        tally.attempts += 1
        if found == self.expected:
            tally.equal += 1
        else:
            tally.fault("silent", f"{name} {how}: {_difference(self.expected, found)}")


def hows(kind: Kind) -> list[str]:
    """The damage that is tried on a kind."""
    tried = {REPLACED: kind.swapped, REMOVED: kind.removed}
    return [how for how in HOWS if tried.get(how, True)]


def _difference(expected: Any, found: Any) -> str:
    if isinstance(expected, list) and isinstance(found, list):
        for one, other in zip(expected, found, strict=False):
            if one != other:
                return _difference(one, other)
    return f"{str(expected)[:300]} became {str(found)[:300]}"


def _late(*_: object) -> None:
    raise TimeoutError("reading does not end")


def main(count: int, seed: int, folder: Path, names: list[str]) -> None:
    """Attack kinds that are made alike; prints a line of JSON for each."""
    warnings.simplefilter("ignore")
    os.environ["ICQL_CACHE"] = str(folder / "cache")
    vars(desk)["draw_run"] = lambda *_: []  # pictures take longer than all the rest
    signal.signal(signal.SIGALRM, _late)
    for name in names:
        _attack(name, count, seed, folder)


def _attack(name: str, count: int, seed: int, folder: Path) -> None:
    kind, tally = KINDS[name], Tally(name)
    subject = Subject(kind, folder)
    rng, tried = random.Random(f"{seed} {name}"), hows(kind)
    for number in range(4 * count):  # some leave the file as it was
        if tally.attempts >= count:
            break
        signal.alarm(PATIENCE)
        subject.attack(tried[number % len(tried)], rng, tally)
        signal.alarm(0)
    counts = [tally.attempts, tally.refused, tally.equal]
    print(json.dumps({"kind": name, "counts": counts, "faults": tally.faults}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
