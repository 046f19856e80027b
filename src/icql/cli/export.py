"""`icql export` and `icql serve`."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tyro

from icql.cli.options import Flag, Options, Result
from icql.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Export(Options):
    """Write a run's policy and its alarm as one ONNX file that runs without this package.

    The file takes states in the units of the log and gives actions as `policy.act` does, how far
    each state is from the nearest logged one, and whether that is an alarm. Before it is written it
    is run with onnxruntime on 10,000 states and compared with the policy. Its card is inside, and
    beside it as Markdown (docs/export.md).
    """

    run: tyro.conf.Positional[Path]
    """Run folder."""
    file: tyro.conf.Positional[Path]
    """The file to write, e.g. policy.onnx; its card is policy.md."""
    states: int = 20_000
    """How many logged states the alarm keeps at most."""
    rate: float = 0.05
    """Its false alarms: this share of the states of new episodes like the logged ones."""
    member: int = 0
    """Which of the policies that were trained side by side, counted from 0."""
    no_alarm: Flag = False
    """Leave the alarm out; the run's data is not needed then."""
    dataset: str | None = None
    """Where the data is now, if not where it was when the run was made."""

    def files_written(self) -> Iterable[Path]:
        """The policy and its card."""
        return (self.file, self.file.with_suffix(".md"))

    def execute(self) -> Result:
        """Write and show."""
        from icql.training.trained import load_policy

        policy = load_policy(self.run)
        if not 0 <= self.member < len(policy.members):
            known = "; ".join(f"{i}: {one.label}" for i, one in enumerate(policy.members))
            raise UserError(f"there is no {self.member}.", where="--member", fix=f"Known: {known}.")
        chosen = policy.members[self.member]
        card = policy.export(
            self.file,
            states=self.states,
            rate=self.rate,
            alarm=not self.no_alarm,
            dataset=self.dataset,
            seed=chosen.seed,
            settings=chosen.settings,
        )
        page, size = self.file.with_suffix(".md"), self.file.stat().st_size
        others = f", of {len(policy.members)} members" if len(policy.members) > 1 else ""
        self.say(f"{self.file}: {size / 1e6:.1f} MB, {card['algo']}, {chosen.label}{others}")
        if card["alarm"] is not None:
            alarm = card["alarm"]
            self.say(
                f"  alarm: over {alarm['states']:,} states, rings beyond {alarm['limit']:.4g}, "
                f"about {100 * alarm['rate']:g} % false alarms"
            )
            if alarm["worst"] > 2 * alarm["rate"]:
                self.say(
                    "  so few episodes can promise no such rate: "
                    f"up to {100 * alarm['worst']:.2g} % where they are unlike each other"
                )
        check = card["check"]
        found = (
            f"actions within {check['action_error']:.1g} of their range"
            if "action_error" in check
            else f"{check['choices_that_differ']} choices differ"
        )
        self.say(f"  checked on {check['states']:,} states: {found}")
        self.say(f"{page}: its card")
        return {"file": str(self.file), "card_file": str(page), "bytes": size, "card": card}


@dataclass(frozen=True, kw_only=True)
class Serve(Options):
    """Answer requests with an exported policy, on this machine, until SIGTERM or Ctrl-C.

    POST /act takes {"states": [[…], …]} and gives actions, distances and alarms; GET /health says
    whether it answers; GET / gives the card. All want the header Authorization: Bearer TOKEN, with
    the token that is printed, or your own in ICQL_TOKEN. On SIGTERM what was asked is still
    answered.
    """

    file: tyro.conf.Positional[Path]
    """What 'icql export' wrote."""
    port: int = 8000
    """Port; 0 for any that is free."""
    host: str = "127.0.0.1"
    """Loopback address to listen on: 127.0.0.1, localhost or ::1."""
    no_token: Flag = False
    """Answer every user of this machine, without a token."""

    def execute(self) -> Result:
        """Serve, and say what was answered."""
        from icql.serving.policy_file import INSTALL, NEEDED, PolicyFile

        try:
            from icql.serving.guard import chosen_token
            from icql.serving.server import serve
        except ModuleNotFoundError as error:
            raise UserError(NEEDED, where="icql serve", fix=INSTALL) from error
        own = None if self.no_token else chosen_token()
        token = None if self.no_token else own or secrets.token_urlsafe(24)
        policy = PolicyFile(self.file)

        def begun(address: str) -> None:
            said = f"serving {self.file} at {address} (POST /act)"
            if own is None and token is not None:
                said += f"\nits token, for the header Authorization: Bearer TOKEN: {token}"
            print(said, file=sys.stderr, flush=True)

        served = serve(policy, self.host, self.port, token, begun)
        counts = {name: getattr(served, name) for name in ("requests", "rows", "alarms", "refused")}
        rang = f", {counts['alarms']:,} alarms" if policy.card["alarm"] is not None else ""
        self.say(
            f"answered {counts['requests']:,} requests with {counts['rows']:,} states{rang}; "
            f"refused {counts['refused']:,}"
        )
        return counts
