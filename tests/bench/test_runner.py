"""The runner never loses work: kills, locks, damaged records, failures, missing data."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import icql
import pendulum
from bench import small_suite
from bench.small_suite import RUN, SUITE, TINY, outcomes, request, run
from icql.algos.presets import resolve_preset
from icql.analysis.brief import brief_rows
from icql.bench import runner
from icql.bench.analyses import analyses_of
from icql.bench.merge import merge
from icql.bench.records import FORMAT, BenchFolder, Damaged, read_sealed
from icql.bench.report import gather, write_report
from icql.bench.status import status
from icql.bench.suites import Row, get_suite, suites
from icql.cli import main
from icql.errors import OutOfTime, UserError
from icql.graph.deviations import Around, action_spread, deviations_last
from icql.locks import held, holder
from icql.progress import Display
from icql.seals import write_sealed

QUICK = {"steps": 4, "evaluate_every": 4, "checkpoint_every": 4, "log_every": 4, "episodes": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pendulum.register()
    return pendulum.make_data(tmp_path_factory.mktemp("data") / "pendulum.npz", steps=400)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """The folder of a suite that ran without interruption."""
    out = tmp_path_factory.mktemp("whole") / "bench"
    result = run(data, out)
    assert result["finished"] == result["cells"] == 4
    assert result["failed"] == []
    return out


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "bench"))


def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("icql.training.trainer.run_training", refuse)


def test_every_cell_has_a_record_by_content(whole):
    folder = BenchFolder.open(whole)
    groups, wrong = folder.groups()
    assert wrong == []
    assert sorted(group.algo for group in groups) == ["bc", "iql"]
    assert len(list((whole / "records").iterdir())) == 4
    for group in groups:
        records, damaged = folder.records(group)
        assert sorted(records) == [0, 1]
        assert damaged == {}
        for seed, record in records.items():
            outcome = record["outcome"]
            assert record["cell"]["seed"] == seed
            assert [step for step, _ in outcome["curve"]] == [100, 200]
            assert outcome["score"] == outcome["curve"][-1][1]
            assert outcome["best"]["score"] == max(score for _, score in outcome["curve"])
            assert record["run"]["together"] == [0, 1]  # one program


def test_what_the_data_decides_is_the_cell_of_what_it_chose(data, monkeypatch):
    def rows(*names: str) -> Any:
        chosen = tuple(Row(id=n, name=n, algo=n, settings=TINY) for n in names)
        return request(data, suite=dataclasses.replace(SUITE, rows=chosen), run=QUICK)

    monkeypatch.setattr("icql.training.choose.LIMIT", 2.0)  # a graph, whatever the spread
    monkeypatch.setattr("icql.training.choose.LASTING", -1.0)  # as it is, whatever lasts
    said: list[str] = []
    (decided,), (named,) = rows("auto").groups(said.append), rows("icql-graph").groups(said.append)
    (why,) = said
    assert why.startswith(f"{named.asked[0].task}: icql-graph: similar states saw ")
    assert "limit 2.0" in why
    assert decided.key == named.key
    assert decided.algo == "icql-graph"
    assert decided.asked[0].full_steps == named.asked[0].full_steps  # of auto itself there is none
    (both,) = rows("icql-graph", "auto").groups()
    assert [place.row for place in both.asked] == ["icql-graph", "auto"]


def test_updates_that_were_asked_for_are_kept_though_they_are_the_usual_ones_of_auto(
    data, monkeypatch
):
    auto = (Row(id="auto", name="auto", algo="auto", settings=TINY),)
    suite = dataclasses.replace(SUITE, rows=auto)
    usual = resolve_preset("auto", suite.preset, pendulum.TASK.name).run.steps
    monkeypatch.setattr("icql.training.choose.LIMIT", 2.0)  # a graph, whose usual ones are others
    assert resolve_preset("icql-graph", suite.preset, pendulum.TASK.name).run.steps != usual
    (decided,) = request(data, suite=suite, run={**QUICK, "steps": usual}).groups()
    assert decided.run["steps"] == usual


def test_what_a_report_shows_is_kept_small_beside_the_records(whole):
    """Of the data once, and of each group with critics; their numbers are those of the run."""
    folder = BenchFolder.open(whole)
    (iql,) = [group for group in folder.groups()[0] if group.algo == "iql"]
    files = sorted(path.name for path in (whole / "analyses").iterdir())
    assert files == sorted([f"{iql.key}.json", f"data-{iql.data_hash[:32]}.json"])
    assert sum(path.stat().st_size for path in (whole / "analyses").iterdir()) < 50_000
    data, critics = analyses_of(folder, iql)
    assert data is not None
    assert critics is not None
    assert len(data["plane"]) == len(data["outcome"]) == len(critics["values"]) == data["rows"]
    assert critics["layers"] is None
    assert len(critics["rank"]) == 2
    run = whole / "runs" / iql.key / "0-1"
    asked = icql.load_critic(run)
    rows = brief_rows(asked.data)
    q = asked.q(asked.data.states[rows], asked.data.actions[rows], seed=0)
    assert critics["values"] == pytest.approx(q.tolist(), rel=1e-3)
    around = Around(asked.data, space="standardised")  # it is a log of one's own
    assert data["action_spread"] == round(action_spread(around), 3)
    assert data["deviations_last"] == round(deviations_last(around), 3)
    nearest = [one["all"][1] for one in data["distances"]]
    assert nearest == sorted(nearest)


def test_an_analysis_that_fails_costs_no_record(data, tmp_path, monkeypatch, capfd):
    def fails(*_: object) -> None:
        raise RuntimeError("too <large>")

    monkeypatch.setattr("icql.analysis.brief.brief_of_run", fails)
    asked = request(data, run=QUICK, algos=("iql",))
    result = runner.run_suite(asked, tmp_path / "bench", Display())
    assert (result["finished"], result["failed"]) == (2, [])
    assert "could not be analysed: too <large>" in capfd.readouterr().err
    assert analyses_of(BenchFolder.open(tmp_path / "bench"), asked.groups()[0])[1] == {
        "error": "too <large>"
    }


def test_finished_cells_never_run_again(data, copied, monkeypatch):
    no_training(monkeypatch)
    before = outcomes(copied)
    result = run(data, copied)
    assert result["found_finished"] == 4
    assert outcomes(copied) == before


def test_what_decides_the_outcome_is_in_the_key(data):
    (cloning, _) = request(data).groups()
    row = Row(id="bc", name="BC", algo="bc", settings={**TINY, "policy.hidden": [8, 4]})
    narrow = dataclasses.replace(SUITE, rows=(row,))
    other = {
        "settings": request(data, suite=narrow).groups()[0],
        "run": request(data, run={**RUN, "steps": 201}).groups()[0],
        "algorithm": request(data).groups()[1],
    }
    keys = {cloning.key, *(group.key for group in other.values())}
    assert len(keys) == 4
    assert cloning.cell_key(0) != cloning.cell_key(1)
    assert request(data, seeds=7, seed=3).groups()[0].key == cloning.key


def test_data_of_ones_own_has_a_name_of_its_own(data, tmp_path):
    """The same data under two names is one group in two places of the table."""
    other = pendulum.make_data(tmp_path / "other.npz", steps=300, seed=1)
    names = ("pendulum-test@mine", "pendulum-test@same", "pendulum-test@other")
    places = {names[0]: str(data), names[1]: str(data), names[2]: str(other)}
    groups = request(data, algos=("bc",), tasks=names, datasets=places).groups()
    assert [[place.task for place in g.asked] for g in groups] == [list(names[:2]), [names[2]]]
    assert {group.task for group in groups} == {"pendulum-test"}


def test_killed_in_the_middle_of_a_training_it_ends_with_the_same_records(
    data, whole, tmp_path, capfd
):
    out = tmp_path / "bench"
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    child = subprocess.Popen(
        [sys.executable, small_suite.__file__, str(data), str(out)],
        env=os.environ | {"PYTHONPATH": paths},
    )

    def second_group_has_a_checkpoint() -> bool:
        saved = [p for p in out.glob("runs/*/0-1/checkpoints/*") if p.name.isdigit()]
        return len({p.parents[2] for p in saved}) == 2

    end = time.monotonic() + 120
    while not second_group_has_a_checkpoint() and child.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert 2 <= len(list((out / "records").glob("*.json"))) < 4, "it was not killed in the middle"
    result = run_suite_loud(data, out)
    assert result["found_finished"] == 2
    assert "resuming at update" in capfd.readouterr().err
    assert outcomes(out) == outcomes(whole)
    resumed = [
        record["run"]["resumed_at"]
        for record in (json.loads(p.read_text()) for p in (out / "records").iterdir())
    ]
    assert sorted(map(len, resumed)) == [0, 0, 1, 1]
    assert all(steps[0] % 20 == 0 and 0 < steps[0] <= 200 for steps in resumed if steps)


def test_stopped_by_the_clock_it_goes_on_to_the_same_records(data, tmp_path, monkeypatch):
    """Every call is out of time as soon as it begins, and still gets one mark further."""
    asked = request(data, algos=("bc",), run=RUN | {"log_every": 50, "checkpoint_every": 1000})
    runner.run_suite(asked, tmp_path / "whole", Display(quiet=True))
    monkeypatch.setattr("icql.training.desk.Desk.late", lambda *_: True)
    out, stops = tmp_path / "bench", 0
    while True:
        until = time.monotonic() + 3600
        work = functools.partial(runner.run_groups, until=until)
        result = runner.run_suite(asked, out, Display(quiet=True), work)
        if not result["out_of_time"]:
            break
        stops += 1
        saved = [int(p.name) for p in out.glob("runs/*/0-1/checkpoints/*") if p.name.isdigit()]
        assert max(saved) == 50 * stops
        assert not list(out.glob("failures/*"))  # to be stopped is no failure
    assert stops == 3  # of four marks the last one ends the run
    assert outcomes(out) == outcomes(tmp_path / "whole")
    (record, *_) = [json.loads(p.read_text()) for p in (out / "records").iterdir()]
    assert record["run"]["resumed_at"] == [50, 100, 150]


def test_a_limit_of_time_is_said_and_a_wrong_one_refused(tmp_path, capsys, monkeypatch):
    def none_left(*_: object, until: float, **__: object) -> None:
        assert until - time.monotonic() == pytest.approx(100, abs=60)
        raise OutOfTime

    monkeypatch.setattr(runner, "run_groups", none_left)
    here = ["run", "main", "--tasks", "hopper-mini", "--algos", "bc", "--preset", "quick"]
    here += ["--out", str(tmp_path / "bench")]
    assert main(["bench", *here, "--time-limit", "100"]) == 0
    assert "the same command goes on" in capsys.readouterr().out
    assert "above 0" in refused(capsys, *here, "--time-limit", "0")
    pytest.importorskip("ray")
    assert "without --on ray" in refused(capsys, *here, "--time-limit", "9", "--on", "ray")


def test_no_group_is_begun_after_the_time_is_up(data, tmp_path, monkeypatch):
    no_training(monkeypatch)
    work = functools.partial(runner.run_groups, until=time.monotonic() - 1)
    result = runner.run_suite(request(data), tmp_path / "b", Display(quiet=True), work)
    assert (result["finished"], result["out_of_time"], result["failed"]) == (0, True, [])


def test_records_without_their_groups_are_said(copied, tmp_path, capsys):
    """Half a folder that was copied."""
    shutil.rmtree(copied / "groups")
    [said] = status(BenchFolder.open(copied))["damaged"]
    assert "4 of 4 records belong to no group" in said
    assert "records belong to no group" in str(merge([copied], tmp_path / "other")["damaged"])
    assert any(
        "records belong to no group" in note for note in gather(BenchFolder.open(copied)).notes
    )


def test_folders_of_several_machines_are_merged(data, whole, tmp_path, capsys):
    """Half of the cells from each, one of them damaged, one with another outcome: all are said."""
    parts = [Path(shutil.copytree(whole, tmp_path / name)) for name in ("one", "two")]
    records = sorted(path.name for path in (whole / "records").iterdir())
    for name in records[:2]:
        (parts[0] / "records" / name).unlink()
    (parts[1] / "records" / records[3]).write_text("{")
    changed = json.loads((parts[1] / "records" / records[2]).read_text())
    changed.pop("digest")
    changed["outcome"]["score"] = -1.0
    write_sealed(parts[1] / "records" / records[2], changed)
    out = tmp_path / "merged"
    argv = ["bench", "merge", *map(str, parts), "--out", str(out)]
    assert main([*argv, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["copied"], said["found"]) == (4, 1)
    assert len(said["other_outcome"]) == 1
    assert records[3] in said["damaged"][0]
    assert outcomes(out) == outcomes(whole)  # what was there first stays
    assert not (out / "runs").exists()
    names = {group.dataset for group in BenchFolder.open(out).groups()[0]}
    assert names == {"pendulum.npz"}  # where it lay on that machine is nobody's business
    analyses = {p.name: p.read_bytes() for p in (whole / "analyses").iterdir()}
    assert {p.name: p.read_bytes() for p in (out / "analyses").iterdir()} == analyses
    assert main(argv) == 0
    assert "0 cells copied" in capsys.readouterr().out
    result = run(data, out)  # and a merged folder is one to go on with
    assert result["found_finished"] == 4
    assert "into itself" in refused(capsys, "merge", str(out), "--out", str(out))
    assert "not a benchmark folder" in refused(
        capsys, "merge", str(tmp_path), "--out", str(tmp_path / "new")
    )
    assert not (tmp_path / "new").exists()


def test_seconds_of_a_resumed_run_are_those_of_all_its_parts():
    def rows(*pairs: tuple[int, float]) -> list[dict]:
        return [{"kind": "train", "step": step, "seconds": s} for step, s in pairs]

    whole = rows((10, 1.0), (20, 2.0), (30, 3.0))
    assert runner.update_seconds([*whole, {"kind": "evaluation", "step": 30}], []) == 3.0
    parts = rows((10, 1.0), (20, 2.0), (30, 2.5), (40, 4.0), (50, 0.5))
    assert runner.update_seconds(parts, [20, 40]) == 2.0 + 4.0 + 0.5
    assert runner.update_seconds(rows((10, 1.0)), [10]) == 1.0  # resumed, with nothing left to do
    assert runner.update_seconds([], []) == 0.0


def run_suite_loud(data: Path, out: Path) -> dict:
    return runner.run_suite(request(data), out, Display())


def test_more_seeds_are_added_and_the_others_stay(data, tmp_path):
    out = tmp_path / "bench"
    run(data, out, algos=("bc",), run=QUICK)
    first = outcomes(out)
    result = run(data, out, algos=("bc",), run=QUICK, seeds=4)
    assert (result["found_finished"], result["finished"]) == (2, 4)
    assert first.items() <= outcomes(out).items()
    assert sorted(p.name for p in out.glob("runs/*/*")) == ["0-1", "2-3"]


@pytest.mark.parametrize("harm", ["cut", "changed", "renamed", "empty"])
def test_damaged_records_are_found_said_and_made_again(data, copied, harm, capfd, monkeypatch):
    before = outcomes(copied)
    first, second = sorted((copied / "records").glob("*.json"))[:2]
    if harm == "cut":
        first.write_text(first.read_text()[:200])
    elif harm == "changed":
        content = json.loads(first.read_text())
        content["outcome"]["score"] = 100.0
        first.write_text(json.dumps(content))
    elif harm == "renamed":
        shutil.copy(second, first)  # whole, and of another cell
    else:
        first.write_text("")
    said = status(BenchFolder.open(copied))
    assert said["finished"] == 3
    assert first.name in said["damaged"][0]
    others = {p: p.read_bytes() for p in (copied / "records").iterdir() if p != first}
    no_training(monkeypatch)  # the run folder is still there
    run_suite_loud(data, copied)
    assert {p: p.read_bytes() for p in others} == others  # finished cells are not even written
    assert first.name in capfd.readouterr().err
    assert outcomes(copied) == before


def test_a_damaged_record_without_its_run_is_trained_again(data, copied):
    before = outcomes(copied)
    group = next(g for g in BenchFolder.open(copied).groups()[0] if g.algo == "bc")
    shutil.rmtree(copied / "runs" / group.key)
    for seed in group.seeds:
        (copied / "records" / f"{group.cell_key(seed)}.json").write_text("{}")
    run(data, copied)
    assert outcomes(copied) == before


def unfinished(copied: Path) -> Path:
    """The run folder of BC's seeds, as if it had been killed before its last lines."""
    group = next(g for g in BenchFolder.open(copied).groups()[0] if g.algo == "bc")
    for seed in group.seeds:
        (copied / "records" / f"{group.cell_key(seed)}.json").unlink()
    place = copied / "runs" / group.key / "0-1"
    (place / "result.json").unlink()
    return place


def test_a_run_folder_of_no_use_is_set_aside(data, copied, capfd):
    before = outcomes(copied)
    place = unfinished(copied)
    (place / "run.json").write_text('{"format": 0}')
    run_suite_loud(data, copied)
    assert "format 0" in capfd.readouterr().err
    assert outcomes(copied) == before
    assert len(list(place.parent.glob("0-1.aside.*"))) == 1


def test_a_checkpoint_that_cannot_be_restored_is_set_aside(data, copied, capfd):
    before = outcomes(copied)
    place = unfinished(copied)
    for step in (place / "checkpoints").iterdir():
        shutil.rmtree(step / "default")
    result = run_suite_loud(data, copied)
    assert result["failed"] == []
    assert "cannot be restored" in capfd.readouterr().err
    assert outcomes(copied) == before


def test_a_failing_group_is_recorded_and_the_rest_goes_on(data, tmp_path, monkeypatch):
    import icql.training.trainer as trainer

    train, out = trainer.run_training, tmp_path / "bench"

    def fails(plan, **more):
        if plan.settings.policy.hidden == (8, 4):
            raise RuntimeError("out of <memory>")
        return train(plan, **more)

    narrow = Row(id="narrow", name="narrow", algo="bc", settings={**TINY, "policy.hidden": [8, 4]})
    pair = dataclasses.replace(SUITE, rows=(narrow, SUITE.rows[0]))
    monkeypatch.setattr(trainer, "run_training", fails)
    result = run(data, out, run=QUICK, suite=pair)
    assert (result["finished"], result["cells"]) == (2, 4)
    assert result["failed"][0]["error"] == "out of <memory>"
    (failed,) = [g for g in status(BenchFolder.open(out))["groups"] if g["state"] == "failed"]
    assert (failed["what"], failed["error"]) == ("narrow on pendulum-test", "out of <memory>")
    kept = tmp_path / "kept"  # results that leave out what failed would flatter the rest
    merged = merge([out], kept)
    assert (merged["copied"], merged["failed"]) == (2, ["narrow on pendulum-test: out of <memory>"])
    assert gather(BenchFolder.open(kept)).failures == (
        ("narrow on pendulum-test", "out of <memory>"),
    )
    for suffix in ("md", "html", "tex"):
        write_report(gather(BenchFolder.open(kept)), tmp_path / f"page.{suffix}")
    assert "| pendulum-test | narrow | failed |" in (tmp_path / "page.md").read_text()
    assert '<td title="out of &lt;memory&gt;">failed</td>' in (tmp_path / "page.html").read_text()
    assert "& failed" in (tmp_path / "page.tex").read_text()
    (told,) = (kept / "failures").iterdir()
    assert "trace" not in json.loads(
        told.read_text()
    )  # whose files those were is nobody's business
    monkeypatch.setattr(trainer, "run_training", train)
    result = run(data, out, run=QUICK, suite=pair)
    assert (result["finished"], result["failed"]) == (4, [])
    assert list((out / "failures").iterdir()) == []
    assert merge([out], kept)["failed"] == []
    assert gather(BenchFolder.open(kept)).failures == ()
    assert list((kept / "failures").iterdir()) == []


def test_one_group_is_run_by_one_process_and_taken_over_when_it_dies(data, whole, tmp_path):
    """A lock is held by another process; once that is killed, its group is run here."""
    out = tmp_path / "bench"
    group = request(data, algos=("bc",), run=QUICK).groups()[0]
    lock = BenchFolder(out).lock_path(group.key)
    code = (
        "import sys, time; from pathlib import Path; from icql.locks import held\n"
        "with held(Path(sys.argv[1])) as got:\n print(got, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(lock)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "True\n"
    assert holder(lock) is not None
    assert f"process {child.pid}" in str(holder(lock))
    with held(lock) as mine:
        assert not mine
    BenchFolder(out).manifest_path.write_text('{"format": 1}')
    done = threading.Event()

    def work() -> None:
        run(data, out, algos=("bc",), run=QUICK)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(1.0)
    assert not list(out.glob("records/*"))
    child.kill()
    child.wait()
    thread.join(60)
    child.stdout.close()
    assert done.is_set()
    assert len(list(out.glob("records/*"))) == 2


def test_a_place_without_locks_is_said(tmp_path, monkeypatch):
    def fails(_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("icql.locks._take", fails)
    with pytest.raises(UserError, match="No locks available"), held(tmp_path / "lock"):
        pass


def test_groups_that_are_asked_for_again_are_joined(data, tmp_path):
    folder = BenchFolder.make(tmp_path / "bench")
    (group, _) = request(data).groups()
    folder.ask(group)
    place = group.asked[0]
    again = dataclasses.replace(
        group,
        seeds=(5,),
        asked=(dataclasses.replace(place, name="new"), dataclasses.replace(place, suite="other")),
    )
    joined = folder.ask(again)
    assert joined.seeds == (0, 1, 5)
    assert [(one.suite, one.name) for one in joined.asked] == [("small", "new"), ("other", "BC")]
    assert folder.groups() == ([joined], [])


# --- bad input ----------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["bench", *argv]) == 2
    err = capsys.readouterr().err
    assert err.count("icql: error") == 1
    assert "Traceback" not in err
    return err


def test_bad_input_ends_with_one_message_before_any_work(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("ICQL_D4RL_DIR", raising=False)
    out = tmp_path / "bench"
    to = ("--out", str(out))
    assert "Did you mean 'main'" in refused(capsys, "run", "mian", *to)
    assert "icql bench cost" in refused(capsys, "run", "cost", *to)
    missing = refused(capsys, "run", "main", *to)
    assert all(task in missing for task in suites()["main"].tasks)
    assert "icql data fetch walker2d-medium-expert-v2" in missing
    some = refused(capsys, "run", "main", "--tasks", "hopper-mini", "hopper@mine", *to)
    assert "--dataset hopper@mine=FILE" in some
    assert "--tasks hopper-mini" in some
    assert "there is no task" in refused(capsys, "run", "main", "--tasks", "nothing", *to)
    assert "TASK=FILE" in refused(capsys, "run", "main", "--dataset", "nonsense", *to)
    here = ("run", "main", "--tasks", "hopper-mini", *to)
    assert "no row or algorithm 'nothing'" in refused(capsys, *here, "--algos", "nothing")
    typo = refused(capsys, "run", "robust", *here[2:], "--algos", "rigde")
    assert "Did you mean 'ridge'?" in typo  # a row, and no algorithm
    assert "learns online" in refused(capsys, *here, "--algos", "sac")
    assert "at least 1" in refused(capsys, *here, "--seeds", "0")
    assert "no episodes give none" in refused(capsys, *here, "--episodes", "0")
    unused = ("--dataset", "hopper=x.npz")
    assert "no task hopper" in refused(capsys, *here, *unused)
    assert not out.exists()


def test_folders_of_other_kinds_are_refused(capsys, tmp_path):
    assert "no such folder" in refused(capsys, "status", str(tmp_path / "none"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    assert "not a benchmark folder" in refused(capsys, "status", str(tmp_path / "other"))
    here = ("run", "main", "--tasks", "hopper-mini", "--out")
    assert "not empty" in refused(capsys, *here, str(tmp_path / "other"))
    old = tmp_path / "old"
    old.mkdir()
    (old / "bench.json").write_text('{"format": 0}')
    for command in (here, ("status",), ("report",)):
        more = ("--out", "x.html") if command[0] == "report" else ()
        assert "format 0" in refused(capsys, *command, str(old), *more)
    assert [p.name for p in old.iterdir()] == ["bench.json"]
    for half in (None, '{"form'):  # good records beside a lost or half-written manifest
        lost = tmp_path / f"lost{half is None}"
        (lost / "groups").mkdir(parents=True)
        if half is not None:
            (lost / "bench.json").write_text(half)
        for command in (("status", str(lost)), (*here, str(lost))):
            assert f'Write {{"format": {FORMAT}}} into it' in refused(capsys, *command)


def test_sealed_files(tmp_path):
    path = tmp_path / "x.json"
    assert read_sealed(path) is None
    write_sealed(path, {"a": [1, 2.5], "b": None})
    assert read_sealed(path) == {"a": [1, 2.5], "b": None}
    path.write_text(path.read_text().replace("2.5", "2.6"))
    with pytest.raises(Damaged, match="digest"):
        read_sealed(path)
    path.write_text("[]")
    with pytest.raises(Damaged):
        read_sealed(path)


def test_exit_code_1_when_something_failed(data, tmp_path, monkeypatch, capsys):
    import icql.training.trainer as trainer

    def fails(plan, **more):
        raise UserError("training diverged.")

    monkeypatch.setattr(trainer, "run_training", fails)
    argv = ["bench", "run", "main", "--tasks", "hopper-mini", "--algos", "bc", "--seeds", "1"]
    assert main([*argv, "--preset", "quick", "--out", str(tmp_path / "b"), "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["failed"][0]["error"] == "training diverged."
    assert "1 groups failed" in said.err
    assert "BC on hopper-mini" in said.err


def test_rows_are_chosen_by_id_by_algorithm_or_added():
    retrieval = get_suite("retrieval")
    assert [row.id for row in retrieval.chosen(())] == ["random", "similar", "high-reward"]
    assert [row.id for row in retrieval.chosen(("random",))] == ["random"]
    assert [row.id for row in retrieval.chosen(("icql",))] == ["random", "similar", "high-reward"]
    assert [row.id for row in retrieval.chosen(("bc", "similar"))] == ["bc", "similar"]
    assert [row.name for row in retrieval.chosen(("rebrac", "auto"))] == ["ReBRAC", "our default"]
