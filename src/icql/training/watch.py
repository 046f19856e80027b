"""What training may not report: values that are not finite, or that no policy can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from icql.algos.base import Algorithm, HasCritics
from icql.errors import UserError
from icql.settings.grid import Member
from icql.training.vary import vary


def check_finite(
    metrics: Mapping[str, Any], members: Sequence[Member], step: int, remedies: Sequence[str]
) -> None:
    """Stop with a clear message where training has diverged; `remedies` are the algorithm's."""
    for name, values in metrics.items():
        bad = ~np.isfinite(values)
        if bad.any():
            label = members[int(np.argmax(bad))].label
            raise UserError(
                f"training diverged: {name} of {label} is not finite before update {step:,}.",
                where=name,
                fix=f"To try: {'; '.join(remedies)}. metrics.jsonl shows where it began.",
            )


@dataclass
class Watch:
    """Finds critics whose mean value is above all that rewards like the data's can add up to.

    No policy has a value above max r / (1 − γ), or 0 where all rewards are negative. A critic
    beyond that has run away, long before its numbers stop being finite. Values far too low are no
    such sign: conservative methods aim at them.
    """

    algorithm: Algorithm[Any]
    members: Sequence[Member]
    said: bool = field(default=False, init=False)

    def limit(self, member: Member) -> float:
        """The largest value that any policy of `member` can have."""
        algorithm = vary(self.algorithm, member.settings)
        return algorithm.value_range()[1] if isinstance(algorithm, HasCritics) else inf

    def warnings(self, metrics: Mapping[str, Any]) -> list[str]:
        """One sentence for each member whose mean Q is beyond the limit."""
        return [
            f"the mean Q of {member.label} is {value:.4g}, but no policy can have more than "
            f"{self.limit(member):.4g} (largest reward / (1 − γ)): its critic has run away. "
            f"To try: {'; '.join(self.algorithm.remedies)}."
            for member, value in zip(self.members, metrics.get("q", ()), strict=False)
            if value > self.limit(member)
        ]

    def first(self, metrics: Mapping[str, Any]) -> str | None:
        """The first such sentence of the run, once."""
        found = [] if self.said else self.warnings(metrics)
        self.said = self.said or bool(found)
        return found[0] if found else None
