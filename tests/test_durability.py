"""Every file that is kept is written through `icql.files`: no module has a way of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import icql

ROOT = Path(icql.__file__).parent
# names of calls that make, fill or rename files, whatever they are called on
WRITES = {
    "write_text", "write_bytes", "savez", "savez_compressed", "savefig", "write_table", "touch",
    "rename", "renames", "mkdir", "makedirs", "mkdtemp", "mkstemp", "NamedTemporaryFile",
    "TemporaryDirectory", "TemporaryFile", "open_memmap", "save_file", "symlink", "symlink_to",
    "hardlink_to", "copy2", "copyfile", "copytree", "fdopen", "ParquetWriter", "tofile",
    "create_dataset_from_buffers", "download_dataset",
}  # fmt: skip
SAFE = {"atomic", "atomic_folder"}  # what they yield may be written to by any means
ALLOWED = {
    ("locks.py", "mkdir"): "a lock says nothing that has to last",
    ("locks.py", "open"): "a lock says nothing that has to last",
    ("retrieval/cache.py", "open"): "blocks of a draft, synced before the mark with their hash",
    ("retrieval/cache.py", "rename"): "into a scratch folder, to be removed",
    ("data/arrays.py", "open_memmap"): "in a scratch folder, or one that is made whole or not",
    ("data/arrays.py", "open"): "the same file, to take its room on disk beforehand",
    ("data/formats/store.py", "save"): "into the folder that atomic_folder yields",
    ("data/formats/minari_source.py", "create_dataset_from_buffers"): "in atomic_folder",
    ("data/formats/minari_source.py", "download_dataset"): "Minari's own way into Minari's folder",
    ("data/download.py", "open"): "a part of a file, which `move` gives its name",
    ("data/pictures.py", "savefig"): "into memory",
    ("evaluation/env_processes.py", "fdopen"): "a pipe",
    ("cli/saying.py", "open"): "what takes all and keeps nothing",
    ("cli/limited.py", "open"): "standard error, by its number",
}


def writing_calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Calls that write elsewhere than to what `atomic` yields: their name and line."""
    safe = safe_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := written_by(node)) is not None:
            target = node.func.value if isinstance(node.func, ast.Attribute) else node
            onto = {root(target), *(root(argument) for argument in node.args)}
            if not onto & safe:
                yield name, node.lineno


def written_by(call: ast.Call) -> str | None:
    """The name of a call that may write; None: it does not."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else root(call.func)
    module = root(call.func.value) if isinstance(call.func, ast.Attribute) else None
    if name in WRITES or (name == "save" and module in ("np", "numpy")):
        return name
    if name == "replace" and module == "os":
        return name
    if name in ("open", "File") and any(map(is_for_writing, mode_of(call))):
        return name
    return "dump" if name == "dump" and module == "json" else None


def mode_of(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]


def is_for_writing(mode: ast.expr) -> bool:
    value = mode.value if isinstance(mode, ast.Constant) else ""
    return isinstance(value, str) and len(value) <= 4 and bool(set(value) & set("wax+"))


def safe_names(tree: ast.AST) -> set[str | None]:
    """Names of paths that `atomic` yields, and of files opened from those."""
    safe: set[str | None] = set()
    for node in ast.walk(tree):
        for item in getattr(node, "items", ()):
            made, bound = item.context_expr, item.optional_vars
            if isinstance(made, ast.Call) and isinstance(bound, ast.Name):
                inside = {root(made.func), *(root(argument) for argument in made.args)}
                if root(made.func) in SAFE or inside & safe:
                    safe.add(bound.id)
    return safe


def root(node: ast.AST) -> str | None:
    """The name that an expression begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call):
        return root(node.func)
    return node.id if isinstance(node, ast.Name) else None


def test_no_module_writes_files_by_means_of_its_own() -> None:
    found, used = [], set()
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name == "files.py":
            continue
        for call, line in writing_calls(ast.parse(path.read_text())):
            if (name, call) in ALLOWED:
                used.add((name, call))
            else:
                found.append(f"{name}:{line}: {call}")
    assert found == [], "write through icql.files, or say here why not"
    assert set(ALLOWED) - used == set()  # nothing is allowed that is not done


@pytest.mark.parametrize(
    ("line", "calls"),
    [
        ("Path(x).write_text('1')", ["write_text"]),
        ("open(x, 'w')", ["open"]),
        ("x.open(mode='r+b')", ["open"]),
        ("x.open('rb')", []),
        ("np.savez(x, a=1)", ["savez"]),
        ("h5py.File(x, 'w')", ["File"]),
        ("os.replace(x, y)", ["replace"]),
        ("with atomic(x) as t: t.write_text('1')", []),
        ("with atomic(x) as t, t.open('wb') as f: np.save(f, 1)", []),
        ("with atomic(x) as t: y.write_text('1')", ["write_text"]),
    ],
)
def test_such_means_are_seen(line: str, calls: list[str]) -> None:
    assert [name for name, _ in writing_calls(ast.parse(line))] == calls
