"""Checkpoints: what a disk gives back is verified, and belongs to the plan that goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import icql
import pendulum
from icql.cli.main import main
from icql.errors import UserError
from icql.seals import write_sealed
from icql.training import checkpoints as module
from icql.training.checkpoints import Checkpoints, DamagedCheckpoint
from icql.training.run_folder import RunFolder

RUN = {"episodes": 0, "log_every": 10, "checkpoint_every": 10}
SMALL = {"policy.hidden": [8], "batch_size": 8}


def states(number: float) -> dict[str, Any]:
    noise = jax.random.normal(jax.random.key(int(number)), (64, 32))
    return {"w": noise, "count": jnp.int32(number), "name": "not an array"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Checkpoints of steps 2 and 4."""
    made = Checkpoints(tmp_path / "checkpoints", "plan")
    for step in (2, 4):
        made.save(step, states(step))
    made.close()
    return made.path


def newest(path: Path, plan: str | None = "plan") -> tuple[int, Any, list[str]]:
    found, said = Checkpoints(path, plan), list[str]()
    try:
        return *found.newest(states(0), said.append), said
    finally:
        found.close()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def flip(path: Path, place: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 0x10
    path.write_bytes(bytes(content))


def test_the_newest_is_taken_where_all_is_well(saved: Path) -> None:
    step, found, said = newest(saved)
    assert (step, said) == (4, [])
    np.testing.assert_array_equal(found["w"], states(4)["w"])
    assert found["name"] == "not an array"


def test_a_damaged_one_is_named_and_the_previous_taken(saved: Path) -> None:
    """Whichever file of it a bit flips in, or is cut or lost: never other numbers, no traceback."""
    names = [path.relative_to(saved / "4") for path in files(saved / "4")]
    taken = set()
    for name in names:
        for harm in (flip, lambda path: path.write_bytes(path.read_bytes()[:-7]), Path.unlink):
            copy = saved.with_name("copy")
            shutil.copytree(saved, copy)
            harm(copy / "4" / name)
            step, found, said = newest(copy)
            taken.add(step)
            np.testing.assert_array_equal(found["w"], states(step)["w"])
            assert len(said) == (step == 2)
            for line in said:
                assert "warning" in line
                assert "the checkpoint of step 4 cannot be restored (" in line
                assert line.endswith("Step 2 is taken instead.")
                assert "\n" not in line
            shutil.rmtree(copy)
    assert taken == {2, 4}  # not every file matters, e.g. those of Orbax's statistics


def test_what_a_library_cannot_see_is_seen(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other numbers of the right shape and type, e.g. from a file system's silent fault."""
    read = module.ocp.CheckpointManager.restore

    def faulty(self: Any, step: int, **more: Any) -> Any:
        stored = read(self, step, **more)
        if step == 4:
            stored["00001"] = stored["00001"].at[3, 3].add(1e-3)
        return stored

    monkeypatch.setattr(module.ocp.CheckpointManager, "restore", faulty)
    step, _, said = newest(saved)
    assert step == 2
    assert "leaf 1 is not what was saved" in said[0]


def test_the_damaged_step_is_written_again(saved: Path) -> None:
    shutil.rmtree(saved / "4" / "default")
    again = Checkpoints(saved, "plan")
    step, _ = again.newest(states(0), lambda _: None)
    assert step == 2
    again.save(4, states(5))
    again.close()
    step, found, said = newest(saved)
    assert (step, said) == (4, [])
    np.testing.assert_array_equal(found["w"], states(5)["w"])


def test_nothing_is_begun_anew_where_all_are_damaged(saved: Path) -> None:
    for step in ("2", "4"):
        shutil.rmtree(saved / step / "default")
    with pytest.raises(UserError, match=r"step 4 cannot .* step 2 cannot .* None is left"):
        newest(saved)


def test_a_checkpoint_of_another_plan_is_refused(saved: Path) -> None:
    with pytest.raises(UserError, match=r"step 4 was made by another plan") as refused:
        newest(saved, "other")
    assert not isinstance(refused.value, DamagedCheckpoint)


def test_a_plan_damaged_within_a_checkpoint_is_damage(saved: Path) -> None:
    """Not another plan, which would end the run: the one before is taken."""
    [notes] = [path for path in files(saved / "4") if b'"plan"' in path.read_bytes()]
    was = notes.read_bytes()
    notes.write_bytes(was.replace(b'"plan": "plan"', b'"plan": "plao"'))
    assert notes.read_bytes() != was
    step, _, said = newest(saved)
    assert step == 2
    assert "its seal is not what was saved" in said[0]


def test_a_checkpoint_without_a_seal_is_taken_of_old_runs_alone(
    tmp_path: Path, monkeypatch
) -> None:
    save = module.ocp.CheckpointManager.save

    def unsealed(self: Any, *given: Any, custom_metadata: Any, **more: Any) -> Any:
        return save(self, *given, **more)

    monkeypatch.setattr(module.ocp.CheckpointManager, "save", unsealed)
    made = Checkpoints(tmp_path, "plan")
    made.save(2, states(2))
    made.close()
    assert newest(tmp_path, None)[0] == 2
    with pytest.raises(UserError, match="its seal cannot be read"):
        newest(tmp_path, "plan")


def test_what_orbax_raises_while_saving_is_a_sentence(tmp_path: Path, monkeypatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    made = Checkpoints(tmp_path, "plan")
    monkeypatch.setattr(module.ocp.CheckpointManager, "save", full)
    with pytest.raises(UserError, match=r"step 2 cannot be written \(.*No space left"):
        made.save(2, states(2))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pendulum.register()
    folder = tmp_path_factory.mktemp("run")
    data = pendulum.make_data(folder / "pendulum.npz", steps=300)
    given: dict[str, Any] = {"run": RUN, "settings": SMALL}
    icql.train("bc", dataset=str(data), steps=20, out=folder / "out", quiet=True, **given)
    return folder / "out"


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [("settings", "batch_size", 9), ("run", "steps", 30), ("seeds", None, [1]), ("grid", "x", [1])],
)
def test_an_edited_plan_is_refused(
    finished: Path, tmp_path: Path, capsys: Any, section: str, name: str | None, value: Any
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    manifest = json.loads((out / "run.json").read_text())
    if name is None:
        manifest[section] = value
    else:
        manifest[section][name] = value
    (out / "run.json").write_text(json.dumps(manifest))
    assert main(["train", "--resume", "--out", str(out)]) == 2
    assert "run.json: was edited after the run was begun" in capsys.readouterr().err
    with pytest.raises(UserError, match="was edited"):
        icql.load_policy(out)


def test_a_plan_sealed_anew_does_not_fit_its_checkpoints(finished: Path, tmp_path: Path) -> None:
    """As if run.json came from another run."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    manifest = json.loads((out / "run.json").read_text())
    manifest["settings"]["batch_size"] = 9
    (out / "run.json").unlink()
    shutil.move(out, tmp_path / "aside")
    RunFolder.create(out, {name: x for name, x in manifest.items() if name != "seal"})
    shutil.copytree(tmp_path / "aside", out, dirs_exist_ok=True)
    with pytest.raises(UserError, match="step 20 was made by another plan"):
        icql.train(resume=True, out=out, quiet=True)
    del manifest["seal"]  # nor does one without
    write_sealed(out / "run.json", manifest)
    with pytest.raises(UserError, match="step 20 was made by another plan"):
        icql.train(resume=True, out=out, quiet=True)


def test_a_run_goes_on_from_the_one_before_to_the_same_bits(
    finished: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    shutil.rmtree(out / "checkpoints" / "20" / "default")
    assert main(["train", "--resume", "--out", str(out), "--json"]) == 0
    said = capsys.readouterr()
    assert "warning: " in said.err
    assert "Step 10 is taken instead." in said.err
    before = json.loads((finished / "result.json").read_text())
    assert json.loads(said.out)["parameter_hash"] == before["parameter_hash"]
    assert main(["train", "--resume", "--out", str(out), "--json"]) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("harm", ["key", "bytes", "digit", "nested"])
def test_a_damaged_row_of_metrics_loses_that_row_alone_and_is_said(
    finished: Path, tmp_path: Path, harm: str, capsys: Any
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    path = out / "metrics.jsonl"
    lines = path.read_bytes().splitlines()
    whole = list(RunFolder.open(out).rows())
    assert len(whole) == len(lines)
    one = {
        "key": b'{"stop": 1}',
        "bytes": b"\xff" + lines[1][1:],
        "digit": lines[1].replace(b"0.", b"1.", 1),  # still JSON, still numbers
        "nested": b"[" * 100_000,
    }[harm]
    assert one != lines[1]
    path.write_bytes(b"\n".join([lines[0], one, *lines[2:], lines[0][:20]]))  # and a kill
    said: list[str] = []
    assert list(RunFolder.open(out).rows(said.append)) == whole[:1] + whole[2:]
    assert len(said) == 1
    assert "metrics.jsonl: line 2 damaged and passed over" in said[0]
    assert main(["train", "--resume", "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("line 2 damaged") == 1
    before = json.loads((finished / "result.json").read_text())
    assert json.loads(printed.out)["parameter_hash"] == before["parameter_hash"]
    assert list(RunFolder.open(out).rows(said.append)) == whole[:1] + whole[2:]
    assert len(said) == 1


def test_rows_of_runs_made_before_there_were_checks_are_read(
    finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    rows = list(RunFolder.open(out).rows())
    (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(RunFolder.open(out).rows()) == rows


def test_a_lost_last_evaluation_is_made_again(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    path = out / "metrics.jsonl"
    whole = list(RunFolder.open(out).rows())
    last = max(i for i, row in enumerate(whole) if row["kind"] == "evaluation")
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:last], b"?", *lines[last + 1 :], b""]))
    icql.train(resume=True, out=out, quiet=True)
    again = [row for row in RunFolder.open(out).rows() if row["kind"] == "evaluation"]
    assert again[-1]["step"] == whole[last]["step"]
