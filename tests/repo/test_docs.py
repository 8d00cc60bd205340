"""The documents say what the code says: generated parts, links, the file tree, the verbs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
VERB = re.compile(r"(?:^ *|`)shoal ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The names that headings of a document can be linked by."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", head.lower()) for head in heads)
    return {head.replace(" ", "-") for head in plain}


def named(document: Path) -> str:
    return str(document.relative_to(ROOT))


def test_the_generated_parts_are_current():
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_relative_links_lead_somewhere(document):
    lost = []
    for target in LINK.findall(FENCE.sub("", document.read_text())):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        place = (document.parent / path).resolve() if path else document
        if not place.exists() or (anchor and anchor not in anchors(place.read_text())):
            lost.append(target)
    assert lost == []


def test_every_verb_in_the_documents_exists():
    from cyclopts import App

    from shoal.cli.app import app

    unknown = set()
    for document in DOCUMENTS:
        for verb, second in VERB.findall(document.read_text()):
            if verb not in app:
                unknown.add(verb)
            elif second and isinstance(app[verb], App) and list_verbs(app[verb]):
                unknown |= {f"{verb} {second}"} - {f"{verb} {one}" for one in list_verbs(app[verb])}
    assert unknown == set()


def list_verbs(app) -> list[str]:
    return [name for name in app if not name.startswith("-")]


def test_dashboard_and_alerts_name_only_metrics_that_daemons_give():
    given = set(re.findall(r"`(shoal_[a-z_]+)`", (ROOT / "docs" / "monitoring.md").read_text()))
    given |= {"shoal_process_resident_memory_bytes", "shoal_process_cpu_seconds_total"}
    for name in ("grafana.json", "alerts.yml"):
        named = set(re.findall(r"shoal_[a-z_]+", (ROOT / "docs/monitoring" / name).read_text()))
        assert len(named) > 3
        assert named - given == set(), name


def test_the_dashboard_is_json_with_a_grid_that_does_not_overlap():
    board = json.loads((ROOT / "docs" / "monitoring" / "grafana.json").read_text())
    taken = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
