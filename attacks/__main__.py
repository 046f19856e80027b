"""Damage everything that is stored and kill everything that runs; `make attack`, minutes.

    python -m attacks                                   200 and more damaged files, 100 kills
    python -m attacks --damages 5000 --kills 0 --seed 7
    python -m attacks --only 'kill: train' --kills 20
    python -m attacks --out docs/reliability.md         write the table into the page

Exit code 1 where anything was believed that is not what was written, ended in a traceback or was
lost.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attacks.tally import Tally, table

BEGIN, END = "<!-- attack: begin -->", "<!-- attack: end -->"


def main() -> int:
    """Attack, and print the table."""
    options = _options()
    os.environ["JAX_PLATFORMS"] = "cpu"
    begin = time.monotonic()
    tallies: list[Tally] = []
    with tempfile.TemporaryDirectory(prefix="icql-attack-") as name:
        if options.damages:
            tallies += _damages(options, Path(name))
        if options.kills:
            from attacks.kills import attack_by_kills

            tallies += attack_by_kills(
                options.kills,
                options.seed,
                Path(name) / "kills",
                _tell,
                options.only,
                60 * options.minutes,
            )
    seconds = time.monotonic() - begin
    wrong = [fault for tally in tallies for fault in tally.as_json()["faults"]]
    if options.json:
        lines = [tally.as_json() for tally in tallies]
        print(json.dumps({"seed": options.seed, "seconds": round(seconds), "table": lines}))
    else:
        print(table(tallies))
        for fault in wrong:
            print(f"\n{fault}")
    if options.out is not None:
        _write(options.out, tallies, options, seconds)
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m attacks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--damages", type=int, default=420, help="damaged files in all")
    parser.add_argument("--kills", type=int, default=105, help="kills in all")
    parser.add_argument("--seed", type=int, default=0, help="of every place and moment")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="after which no kill is begun any more"
    )
    parser.add_argument("--only", default="", help="kinds whose name holds this")
    parser.add_argument("--json", action="store_true", help="the table for machines")
    parser.add_argument("--out", type=Path, help="a page to write the table into")
    return parser.parse_args()


def _damages(options: argparse.Namespace, folder: Path) -> list[Tally]:
    """Every kind in a process of its own: one that crashes is a fault, not the end."""
    from attacks.stored import KINDS

    kinds = {name: kind for name, kind in KINDS.items() if options.only in f"damage: {name}"}
    count = max(1, -(-options.damages // max(1, len(kinds))))
    groups: dict[object, list[str]] = {}
    for name, kind in kinds.items():
        groups.setdefault(kind.make, []).append(name)
    tallies = {name: Tally(f"damage: {name}") for name in kinds}
    for number, names in enumerate(groups.values()):
        _attacked(names, [str(count), str(options.seed), str(folder / str(number))], tallies)
    return list(tallies.values())


def _attacked(names: list[str], arguments: list[str], tallies: dict[str, Tally]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "attacks.mutate", *arguments, *names],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    lines = [json.loads(x) for x in ended.stdout.splitlines() if x.startswith('{"kind"')]
    found = {line["kind"]: line for line in lines}
    for name in names:
        tally = tallies[name]
        if name in found:
            tally.attempts, tally.refused, tally.equal = found[name]["counts"]
            tally.faults = [(fault, what) for fault, what in found[name]["faults"]]
        else:
            tally.fault("traceback", f"{name}: exit {ended.returncode}: {ended.stderr[-1500:]}")
        _tell(f"{tally.name}: {tally.numbers}")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _write(path: Path, tallies: list[Tally], options: argparse.Namespace, seconds: float) -> None:
    """Put the table between the marks of a page, with what it takes to make it again."""
    from icql import __version__

    today = datetime.datetime.now(datetime.UTC).date()
    system = f"{platform.system()}, {platform.machine()}, {os.cpu_count()} cores"
    facts = (
        f"{today}, icql {__version__}, Python {platform.python_version()}, {system}, "
        f"{seconds / 60:.0f} minutes. Made with:\n\n"
        f"    python -m attacks --damages {options.damages} --kills {options.kills} "
        f"--seed {options.seed} --out docs/reliability.md\n"
    )
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(f"{before}{BEGIN}\n{facts}\n{table(tallies)}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
