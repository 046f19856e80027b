"""A policy file that is made in a second, without training, and a server of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icql.data.signals import Signals
from icql.data.transitions import DataInfo, Transitions
from icql.evidence.alarm import fit_alarm
from icql.export.agreement import Original
from icql.export.build import export_file
from icql.nn.policies import DeterministicPolicy, Standardised
from icql.settings.shared import PolicySettings

TOKEN = "a-token-of-the-tests"
OBS, ACT, EPISODES, LENGTH = 3, 2, 100, 20
KNOWN = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
SIGNALS = Signals(
    observation=("pressure", "water", "price"),
    action=("heater", "pump"),
    units={"pressure": "Pa"},
    action_low=(40.0, 0.0),
    action_high=(90.0, 100.0),
)
FACTS: dict[str, Any] = {
    "algo": "made up",
    "task": None,
    "member": "seed 0",
    "run": {"steps": 0},
    "settings": {},
    "data": {"name": "made up", "hash": "0" * 64, "rows": EPISODES * LENGTH},
    "policy_hash": "0" * 64,
    "scores": None,
    "warnings": [],
    "verdict": None,
    "trained_with": {},
}


def write_policy(path: Path, *, alarm: bool = True) -> Path:
    rows = EPISODES * LENGTH
    states = np.random.default_rng(0).normal(size=(rows, OBS)).astype(np.float32)
    none = np.zeros(rows, np.float32)
    data = Transitions(
        states=states,
        actions=np.zeros((rows, ACT), np.float32),
        rewards=none,
        next_states=states,
        next_actions=np.zeros((rows, ACT), np.float32),
        mask=none,
        episode=np.repeat(np.arange(EPISODES), LENGTH).astype(np.int32),
        step=np.tile(np.arange(LENGTH), EPISODES).astype(np.int32),
        info=DataInfo("made up"),
    )
    net = DeterministicPolicy(OBS, ACT, PolicySettings(hidden=(16,)), key=jax.random.key(0))
    policy = Standardised(net, jnp.zeros(OBS), jnp.ones(OBS))

    def act(asked: np.ndarray) -> np.ndarray:
        return SIGNALS.in_units(np.asarray(policy(jnp.asarray(asked))))

    rings = fit_alarm(data, rate=0.1) if alarm else None
    export_file(path, Original(act, policy, SIGNALS, rings, ACT), FACTS, states)
    return path


class Server:
    """`icql serve` in a process of its own."""

    def __init__(self, path: Path, *argv: str, token: str = TOKEN) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "icql", "serve", str(path), "--port", "0", *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"ICQL_TOKEN": token},
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "serving" in line, line + self.process.stderr.read()
        self.address = line.partition("http://")[2].split()[0]
        self.port = int(self.address.rpartition(":")[2])

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        """Code, JSON and headers of one answer; a body that is no text is sent as JSON."""
        sent = body if isinstance(body, str | bytes | None) else json.dumps(body)
        given = KNOWN | {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, sent, given)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), answer.headers

    def end(self) -> tuple[int, str, str]:
        """SIGTERM, and how it ended: exit code, standard output and error."""
        self.process.terminate()
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@contextlib.contextmanager
def serving(path: Path, *argv: str, token: str = TOKEN) -> Iterator[Server]:
    server = Server(path, *argv, token=token)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end()
