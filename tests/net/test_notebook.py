"""The notebook of the examples, run from its first cell to its last as a person would."""

from __future__ import annotations

import re

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from host.runtime.python_path import python_path
from tests.support.examples import EXAMPLES

pytestmark = [pytest.mark.net, pytest.mark.timeout(600)]

CELL_S = 300
CELLS_MAX = 16
CHANGES = {"MINUTES = 5.0": "MINUTES = 0.15"}
"""Of the cell that is for whoever runs it."""


@pytest.fixture
def notebook():
    return nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)


def text_of(notebook):
    """What its cells have printed."""
    outputs = [one for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs]
    return "".join(one.text for one in outputs if one.output_type == "stream")


def pictures(notebook):
    return [
        one
        for cell in notebook.cells
        if cell.cell_type == "code"
        for one in cell.outputs
        if "image/png" in one.get("data", {})
    ]


def test_it_is_valid_small_and_without_outputs(notebook):
    nbformat.validate(notebook)
    assert len(notebook.cells) <= CELLS_MAX
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in code] == [[]] * len(code)
    assert {cell.execution_count for cell in code} == {None}


def test_it_hosts_joins_shows_the_loss_and_leaves_nothing_behind(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", python_path())
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (settings,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    for former, changed in CHANGES.items():
        assert former in settings.source
        settings.source = settings.source.replace(former, changed)
    client = NotebookClient(
        notebook, timeout=CELL_S, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    assert pictures(notebook)
    said = text_of(notebook)
    assert "shoal:" in said
    # Of `shoal contributions`, behind `shoal finish`: what was handed in is merged.
    (row,) = re.findall(r"^tiny \w+ +notebook +([\d,]+) +(\d+)", said, re.MULTILINE)
    assert int(row[0].replace(",", "")) > 0
    assert int(row[1]) > 0
    assert "\x1b" not in said
    left = [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in _command(one)]
    assert left == []


def _command(process):
    return " ".join(process.info["cmdline"] or ())
