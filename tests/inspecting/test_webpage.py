"""`icql inspect RUN --out page.html`: one file, whole or absent, that needs nothing else."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

import browser
import icql
from icql.cli import main
from icql.errors import UserError
from icql.seals import write_sealed
from inspecting.made import EVIL


class Parsed(HTMLParser):
    """Which elements a page has, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def test_one_file_that_needs_nothing_else(runs, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["inspect", str(runs["icql"]), str(runs["bc"]), "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    text = out.read_text(encoding="utf-8")
    assert (said["transitions"], said["points"], said["states"]) == (228, 228, 228)
    assert said["bytes"] == len(text.encode()) < 1_000_000
    page = Parsed(text)
    assert page.open == []  # every element is closed
    assert page.links == []
    assert not re.search(r"https?://", text)
    assert EVIL not in text
    assert len(page.scripts) == 2  # the data, and our own
    data = json.loads(page.scripts[0])
    assert data["columns"][1]["name"] == EVIL  # as text
    assert data["columns"][0] == {"name": "pressure", "unit": "Pa"}
    assert data["actions"][0] == {"name": "heater", "unit": "kW", "low": 40.0, "high": 90.0}
    assert str(tmp_path.parent) not in text  # nothing of this machine


@pytest.mark.skipif(not browser.installed(), reason="needs chromium and chromedriver")
def test_the_file_works_in_a_browser(runs, tmp_path):
    out = tmp_path / "page.html"
    icql.inspect(runs["icql-graph"], out=out, quiet=True)
    with browser.browser(tmp_path / "profile") as page:
        page.open(out.as_uri())
        before = page.run("return document.querySelector('.alarm').closest('.card').innerText")
        page.run(
            "const m = document.querySelector('canvas.map'); m.focus();"
            "m.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))"
        )
        after = page.run("return document.querySelector('.alarm').closest('.card').innerText")
        assert before.startswith("Row ")
        assert before != after
        assert EVIL in page.run("return document.querySelector('details').textContent")
        drawn = (
            "const c = document.querySelector('canvas.map');"
            "const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "const seen = new Set(); for (let i = 0; i < p.length; i += 4)"
            "  seen.add(p[i] * 65536 + p[i + 1] * 256 + p[i + 2]); return seen.size"
        )
        assert page.run(drawn) > 20
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
        assert page.complaints() == []


def test_the_page_of_a_run_folder_is_linked_from_its_readme(runs, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(runs["bc"], out)
    assert main(["inspect", str(out), "--page"]) == 0
    assert (out / "inspect.html").is_file()
    told = (out / "README.md").read_text(encoding="utf-8")
    assert "[inspect.html](inspect.html)" in told
    for file in re.findall(r"\]\(([^)]*)\)", told):
        assert (out / file).exists()
    assert "`bc` on `log.csv`" in told
    assert str(tmp_path.parent) not in told
    (out / "inspect.html").unlink()
    assert icql.inspect(out, quiet=True)["page"] == str(out / "inspect.html")


@pytest.mark.parametrize("name", ["page.txt", "there.html"])
def test_where_no_page_can_be_written(runs, tmp_path, name):
    (tmp_path / "there.html").mkdir()
    with pytest.raises(UserError, match=r"must end in \.html|is a folder"):
        icql.inspect(runs["bc"], out=tmp_path / name, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["there.html"]


def test_a_run_that_is_not_finished_or_whose_data_moved(runs, log, tmp_path, capsys):
    out = tmp_path / "page.html"
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    manifest = json.loads((runs["bc"] / "run.json").read_text())
    write_sealed(unfinished / "run.json", manifest)
    assert main(["inspect", str(unfinished), "--out", str(out)]) == 2
    assert "not finished" in capsys.readouterr().err
    moved = {**manifest, "dataset": str(tmp_path / "gone.csv")}
    for name in ("run.json", "policy.safetensors"):
        (unfinished / name).write_bytes((runs["bc"] / name).read_bytes())
    write_sealed(unfinished / "run.json", moved)
    assert main(["inspect", str(unfinished), "--out", str(out)]) == 2
    assert "--dataset" in capsys.readouterr().err
    assert not out.exists()
    assert main(["inspect", str(unfinished), "--out", str(out), "--dataset", str(log)]) == 0
    assert out.exists()
