"""Everything that is stored, damaged at random: refused in a sentence, or read as it was written.

`attacks.stored` lists what there is. Here every kind gets a few attacks that are the same every
time, within a minute in all; ICQL_FUZZ=500 gives each kind 500, chosen anew at every run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from attacks.damage import DAMAGES
from attacks.mutate import Subject, hows
from attacks.stored import KINDS
from attacks.tally import Tally

LONGER = int(os.environ.get("ICQL_FUZZ", "0"))
MANY, FEW = 12, 4  # attacks in the ordinary suite; few where reading takes long
SLOW = ("weights", "space of contexts", "solved graph", "SAC run", "checkpoints")


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """Subjects by kind; those that are made alike are made once."""
    folders: dict[object, Path] = {}

    def found(name: str) -> Subject:
        make = KINDS[name].make
        if make not in folders:
            folders[make] = tmp_path_factory.mktemp("stored")
        return Subject(KINDS[name], folders[make])

    return found


@pytest.mark.filterwarnings("ignore")  # of libraries, about what is damaged
@pytest.mark.parametrize("name", KINDS)
def test_damage_is_refused_or_does_not_matter(
    name: str, subject: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("ICQL_D4RL_DIR", "MINARI_DATASETS_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ICQL_CACHE", os.environ["ICQL_CACHE"])  # readers set it
    attacked = subject(name)

    @settings(
        max_examples=LONGER or (FEW if name in SLOW else MANY),
        derandomize=not LONGER,
        database=None,
        deadline=None,
        phases=(Phase.generate,),  # a smaller seed is no smaller damage
        suppress_health_check=list(HealthCheck),
    )
    @given(how=st.sampled_from(hows(attacked.kind)), seed=st.integers(0, 2**32 - 1))
    def attack(how: str, seed: int) -> None:
        tally = Tally(name)
        attacked.attack(how, random.Random(seed), tally)
        assert not tally.faults, tally.faults[0]

    attack()


@pytest.mark.parametrize("how", DAMAGES)
def test_every_damage_changes_something(how: str) -> None:
    content = b'{"steps": 12345, "seeds": [0, 1, 2]}' * 20
    changed = [DAMAGES[how](content, random.Random(seed)) != content for seed in range(20)]
    assert sum(changed) >= 19


def test_what_is_believed_is_counted(tmp_path: Path) -> None:
    """The attack itself: a reader that believes everything is found out, and one that breaks."""
    from attacks.stored import Kind

    def make(folder: Path, seed: int) -> None:
        (folder / "number").write_text("12345")

    for read, fault in ((lambda f: (f / "number").read_bytes(), "silent"), (_parsed, "traceback")):
        believed = Subject(Kind(make, read), tmp_path / fault)
        tally = Tally("number")
        believed.attack("truncation", random.Random(3), tally)
        believed.attack("emptied", random.Random(0), tally)
        assert fault in {kind for kind, _ in tally.faults}
        assert tally.attempts == 2


def _parsed(folder: Path) -> int:
    return int((folder / "number").read_text())
