"""How fast an exported policy answers: called in a process, and over HTTP by `icql serve`.

    python benchmarks/serve.py --columns 17 --connections 8

The policy is made up (its networks and states are random numbers): nothing is trained. The call
is timed on one core. For HTTP the server and whoever asks share the cores of the machine; at the
end the server gets SIGTERM while it is asked, and every request must have been answered.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import tyro
from numpy.typing import NDArray

from icql.data.signals import Signals
from icql.data.transitions import DataInfo, Transitions
from icql.evidence.alarm import fit_alarm
from icql.export.agreement import Original
from icql.export.build import export_file
from icql.nn.policies import GaussianPolicy, Standardised
from icql.settings.shared import PolicySettings

ACTIONS, LENGTH = 6, 100


TOKEN = "a-token-of-this-benchmark"


@dataclass(frozen=True)
class Options:
    """What is made up, and how it is asked."""

    columns: int = 17
    """Numbers of a state."""
    states: int = 20_000
    """States of the alarm."""
    hidden: tuple[int, ...] = (256, 256)
    """Layers of the policy."""
    connections: int = 8
    """Clients that ask at the same time, each waiting for its answer."""
    seconds: float = 10.0
    """How long they ask."""


@dataclass
class Client:
    """Asks for one state after the other on one connection."""

    port: int
    body: bytes
    until: float
    seconds: list[float] = field(default_factory=list)
    lost: int = 0

    def work(self) -> None:
        """Ask until the time is over, or the server closes the connection."""
        head = b"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        sent = (
            head
            + f"Authorization: Bearer {TOKEN}\r\nContent-Length: {len(self.body)}\r\n\r\n".encode()
            + self.body
        )
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while time.perf_counter() < self.until:
                begin = time.perf_counter()
                try:
                    connection.sendall(sent)
                    answer = _answer(connection)
                except OSError:
                    answer = b""
                if not answer.startswith(b"HTTP/1.1 200"):
                    self.lost += 1
                    return
                self.seconds.append(time.perf_counter() - begin)
                if b"connection: close" in answer.lower():
                    return


def _answer(connection: socket.socket) -> bytes:
    """Head and body of an answer."""
    content = b""
    while b"\r\n\r\n" not in content:
        part = connection.recv(65536)
        if not part:
            return b""
        content += part
    head, _, body = content.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        part = connection.recv(65536)
        if not part:
            return b""
        body += part
    return head


def made_up_file(path: Path, o: Options) -> NDArray[np.float32]:
    """Write a policy file; returns states to ask for."""
    rng = np.random.default_rng(0)
    states = rng.normal(size=(o.states, o.columns)).astype(np.float32)
    none = np.zeros(o.states, np.float32)
    actions = np.zeros((o.states, ACTIONS), np.float32)
    data = Transitions(
        states=states,
        actions=actions,
        rewards=none,
        next_states=states,
        next_actions=actions,
        mask=none,
        episode=(np.arange(o.states) // LENGTH).astype(np.int32),
        step=(np.arange(o.states) % LENGTH).astype(np.int32),
        info=DataInfo("made up"),
    )
    settings = PolicySettings(hidden=o.hidden, layer_norm=True)
    net = GaussianPolicy(o.columns, ACTIONS, settings, key=jax.random.key(0))
    policy = Standardised(net, jnp.zeros(o.columns), jnp.ones(o.columns))
    made: dict[str, Any] = {"run": {"steps": 0}, "scores": None, "verdict": None, "warnings": []}
    made |= {"algo": "made up", "task": None, "member": "made up", "settings": {}}
    made |= {"data": {"name": "made up", "hash": "", "rows": o.states}, "policy_hash": ""}
    original = Original(
        lambda s: np.asarray(policy(jnp.asarray(s))), policy, Signals(), fit_alarm(data), ACTIONS
    )
    export_file(path, original, {**made, "trained_with": {}}, states)
    return states


def time_calls(path: Path, states: NDArray[np.float32], calls: int = 2000) -> NDArray[np.float64]:
    """Seconds of each call with one state, by one thread on one core."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        session = onnxruntime.InferenceSession(
            path.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
        taken = []
        for i in range(calls + 100):
            begin = time.perf_counter()
            session.run(None, {"state": states[i % len(states)][None]})
            taken.append(time.perf_counter() - begin)
    finally:
        os.sched_setaffinity(0, cores)
    return np.array(taken[100:])


def ask_server(path: Path, states: NDArray[np.float32], o: Options) -> dict[str, float]:
    """Requests of several clients at once, SIGTERM before they have enough."""
    server = subprocess.Popen(
        [sys.executable, "-m", "icql", "serve", str(path), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"ICQL_TOKEN": TOKEN},
    )
    assert server.stderr is not None
    port = int(server.stderr.readline().partition("http://")[2].split()[0].rpartition(":")[2])
    begin = time.perf_counter()
    clients = [
        Client(port, json.dumps({"states": [row.tolist()]}).encode(), begin + 2 * o.seconds)
        for row in states[: o.connections]
    ]
    threads = [threading.Thread(target=client.work) for client in clients]
    used = _cpu_seconds(server.pid)
    for thread in threads:
        thread.start()
    time.sleep(o.seconds)
    before, taken = sum(len(c.seconds) for c in clients), time.perf_counter() - begin
    used = _cpu_seconds(server.pid) - used
    server.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    out, _ = server.communicate(timeout=60)
    seconds = np.concatenate([client.seconds for client in clients])
    return {
        "per second": before / taken,
        "the server's own ms of a request": 1e3 * used / before,
        "median ms": 1e3 * float(np.median(seconds)),
        "p99 ms": 1e3 * float(np.quantile(seconds, 0.99)),
        "sent and answered": len(seconds),
        "answered, says the server": json.loads(out)["requests"],
        "lost": sum(client.lost for client in clients),
        "exit code": server.returncode,
    }


def _cpu_seconds(process: int) -> float:
    """What a process has had of the cores: on a busy machine less than the time that passed."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    o = tyro.cli(Options, description=__doc__)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "policy.onnx"
        states = made_up_file(path, o)
        calls = 1e3 * time_calls(path, states)
        shape = f"{o.columns} columns, {o.states:,} states, hidden {o.hidden}"
        print(f"{shape}; {path.stat().st_size / 1e6:.1f} MB; {len(os.sched_getaffinity(0))} cores")
        median, p99 = np.quantile(calls, (0.5, 0.99))
        print(f"a call on one core: median {median:.3f} ms, p99 {p99:.3f} ms")
        for name, value in ask_server(path, states, o).items():
            print(f"  {name}: {value:,.2f}" if isinstance(value, float) else f"  {name}: {value:,}")


if __name__ == "__main__":
    main()
