"""Make the dataset that ships with the package: `python scripts/make_embedded.py --out DIR`.

Hopper-v4 by D4RL's medium-replay protocol, reduced: SAC trains until its policy reaches a third of
expert performance; of everything it saw until then, whole episodes evenly spaced over the run are
kept, the last ones always. Takes about ten minutes on two idle cores; after a kill, the same
command goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from icql.data.tasks import get_task
from icql.online import OnlineSettings, train_online
from icql.online.journal import Episode
from icql.online.protocol import write_dataset
from icql.progress import Display

TRANSITIONS = 60_000  # about 3.5 MB
LAST = 16  # episodes at the end of the run that are kept whatever the spacing says
SETTINGS = OnlineSettings(steps=300_000, seed=0, checkpoint_every=10_000)


def thin(episodes: Sequence[Episode], transitions: int, *, last: int) -> list[Episode]:
    """At most `transitions` steps of whole episodes, evenly spaced in time, the `last` ones kept.

    Walking back from the end, an episode is taken whenever what was taken is behind its share.
    """
    lengths = [rows.stop - rows.start for _, rows in episodes]
    tail = len(episodes) - last
    budget, total = transitions - sum(lengths[tail:]), sum(lengths[:tail])
    taken = seen = 0
    kept = list(range(tail, len(episodes)))
    for i in reversed(range(tail)):
        seen += lengths[i]
        if (taken + lengths[i]) * total <= budget * seen:
            taken += lengths[i]
            kept.append(i)
    return [episodes[i] for i in sorted(kept)]


def main() -> None:
    """Train, reduce, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the dataset")
    parser.add_argument("--work", type=Path, help="folder of the training run (default: OUT/work)")
    arguments = parser.parse_args()
    out: Path = arguments.out
    task, display = get_task("hopper-mini"), Display()

    with display.works() as show:
        run = train_online(
            task, SETTINGS, arguments.work or out / "work", until="medium", progress=show
        )
    if run.medium is None:
        raise SystemExit("SAC did not reach the medium score; try another seed.")

    rows = run.medium.step // SETTINGS.envs
    ended = run.journal.terminals | run.journal.timeouts
    whole = [e for e in run.journal.episodes(rows) if ended[e[1].stop - 1, e[0]]]
    kept = thin(whole, TRANSITIONS, last=LAST)
    facts = {
        "protocol": "D4RL medium-replay, reduced to whole episodes evenly spaced over the run",
        "algorithm": "SAC",
        "settings": asdict(SETTINGS),
        "environment_steps": run.medium.step,
        "stopped_policy": {**asdict(run.medium), "return": run.medium.mean},
        "evaluations": [{"step": e.step, "return": e.mean} for e in run.evaluations],
        "episodes_seen": len(whole),
    }
    provenance = write_dataset(out / "hopper-mini.npz", run.journal.steps(kept), task, facts)
    display.say(
        f"{out / 'hopper-mini.npz'}: {provenance['steps']:,} steps of {provenance['episodes']} "
        f"episodes, {provenance['bytes'] / 1e6:.2f} MB, mean return "
        f"{provenance['return']['mean']:.0f}, policy stopped at {run.medium.mean:.0f}"
    )


if __name__ == "__main__":
    main()
