"""Work without a command of its own that is as short as it has to be, to be killed.

python -m attacks.child tables DATA CACHE    neighbour tables, block by block
python -m attacks.child collect OUT          SAC of a moment, and a dataset of its best policy
"""

from __future__ import annotations

import sys
from pathlib import Path

BLOCKS = 18_000_000  # bytes for a search: many blocks, so that there are drafts


def tables(data: Path, cache_dir: Path) -> None:
    """Build the tables, or go on with them."""
    from icql.data import load_dataset
    from icql.retrieval import build_neighbours
    from icql.settings.contexts import ContextSettings

    build_neighbours(load_dataset(data), ContextSettings(k=5), cache_dir=cache_dir, memory=BLOCKS)


def collect(out: Path) -> None:
    """Collect what an expert of seconds does."""
    from icql.data.tasks import get_task
    from icql.online import OnlineSettings, Recipe
    from icql.online import collect as collected
    from icql.settings.algorithms import SACSettings

    settings = OnlineSettings(
        steps=400,
        envs=2,
        warmup=40,
        evaluate_every=100,
        episodes=1,
        checkpoint_every=40,
        sac=SACSettings(hidden=(8,), batch_size=4),
    )
    collected(Recipe("hopper", get_task("hopper"), settings, 200), "expert", out)


if __name__ == "__main__":
    what, *paths = sys.argv[1:]
    if what == "tables":
        tables(*map(Path, paths))
    else:
        collect(*map(Path, paths))
