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
                options.kills, options.seed, Path(name) / "kills", _tell, options.only
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
    parser.add_argument("--damages", type=int, default=600, help="damaged files in all")
    parser.add_argument("--kills", type=int, default=110, help="kills in all")
    parser.add_argument("--seed", type=int, default=0, help="of every place and moment")
    parser.add_argument("--only", default="", help="kinds whose name holds this")
    parser.add_argument("--json", action="store_true", help="the table for machines")
    parser.add_argument("--out", type=Path, help="a page to write the table into")
    parser.add_argument("--kind", help=argparse.SUPPRESS)  # one kind, in a process of its own
    return parser.parse_args()


def _damages(options: argparse.Namespace, folder: Path) -> list[Tally]:
    """Every kind in a process of its own: one that crashes is a fault, not the end."""
    from attacks.stored import KINDS

    kinds = [kind for kind in KINDS if options.only in kind]
    tallies = []
    for kind in kinds:
        count = max(1, -(-options.damages // len(kinds)))
        command = [sys.executable, "-m", "attacks.mutate", kind, str(count), str(options.seed)]
        ended = subprocess.run(
            [*command, str(folder / kind.replace(" ", "-"))],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        tally = Tally(f"damage: {kind}")
        try:
            said = json.loads(ended.stdout.splitlines()[-1])
            tally.attempts, tally.refused, tally.equal = said["counts"]
            tally.faults = [(fault, what) for fault, what in said["faults"]]
        except (ValueError, IndexError, KeyError):
            tally.fault("traceback", f"{kind}: exit {ended.returncode}: {ended.stderr[-1500:]}")
        _tell(f"{tally.name}: {tally.numbers}")
        tallies.append(tally)
    return tallies


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
