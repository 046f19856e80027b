from __future__ import annotations

from pathlib import Path

import pytest

from inspecting.made import SMALL, train, write_log


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("inspected") / "log.csv")


@pytest.fixture(scope="session")
def runs(log: Path) -> dict[str, Path]:
    return {algo: train(algo, log, log.parent / algo) for algo in SMALL}
