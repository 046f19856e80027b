"""A run folder's README.md: what a colleague who was sent the folder is looking at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icql.files import atomic
from icql.training.run_folder import RunFolder

FILES = {
    "run.json": "what was asked: algorithm, settings, seeds, versions, the data's hash",
    "result.json": "scores and warnings",
    "metrics.jsonl": "all numbers of the training; `tensorboard/` has them too",
    "plots": "pictures",
    "policy.safetensors": "the policies",
    "critic.safetensors": "the critics",
    "graph.safetensors": "what the retrieval graph says of every row",
}
COMMANDS = """```bash
icql inspect {run}          # a page to look at: what stands behind each value, served
icql inspect {run} --page   # the same as one file: inspect.html
icql judge {run}            # is it better than what was logged, by the log alone?
icql export {run} policy.onnx
```"""


def write_readme(folder: RunFolder, result: Mapping[str, Any]) -> None:
    """Write it; nothing in it says where the data lies."""
    with atomic(folder.readme_path) as temporary:
        temporary.write_text(readme(folder, result), encoding="utf-8")


def readme(folder: RunFolder, result: Mapping[str, Any]) -> str:
    """The text, as Markdown."""
    name, seeds = folder.path.resolve().name, result["seeds"]
    data = Path(str(result["dataset"])).name.replace("`", "'")
    told = "seed" if len(seeds) == 1 else "seeds"
    lines = [
        f"# {name}",
        "",
        f"`{result['algo']}` on `{data}`: {result['steps']:,} updates, "
        f"{told} {', '.join(map(str, seeds))}. {_score(result)}",
        *(f"\n**Warning:** {warning}" for warning in result["warnings"]),
        "",
        "A page to look at, once it is written: [inspect.html](inspect.html).",
        "",
        COMMANDS.format(run="."),
        "",
        *(
            f"- [{file}]({file}): {what}"
            for file, what in FILES.items()
            if (folder.path / file).exists()
        ),
    ]
    return "\n".join(lines) + "\n"


def _score(result: Mapping[str, Any]) -> str:
    score = result["score"]
    if score is None:
        return "No episodes were played: there is no score."
    means = [one["mean"] for one in score.get("combinations", [score])]
    best = f"{max(means):.1f}" if len(means) == 1 else f"{min(means):.1f} to {max(means):.1f}"
    return f"Final score {best}, mean over seeds."
