"""The documents say what the code says: generated parts, links, paths, names, verbs, words."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.__main__ import PACKAGES

ROOT = Path(__file__).parents[2]
ENTRANCES = sorted(ROOT.glob("*.md"))
DOCUMENTS = [*ENTRANCES, *sorted((ROOT / "docs").rglob("*.md"))]
HISTORY = {ROOT / "CHANGELOG.md", *(ROOT / "docs" / "log").glob("*.md")}
"""Documents that keep the names and words of their day."""
PRESENT = [one for one in DOCUMENTS if one not in HISTORY]
TODAY = [one for one in PRESENT if one.parent.name != "decisions"]
"""Decisions may say what something was called."""
README_LINES_MAX = 150
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SOURCE = re.compile(r"(?<![\w/.-])(?:[\w-]+/)*[\w-]+\.py\b")
PLACE = re.compile(r"`([\w/]+\.py)(?::([\w.]+))?`")
RETIRED = re.compile(
    r"\b(?:amiss|nought|reckon\w*|vigil|hospitality|glancing|of those who|who hosts|"
    r"is heard of by nobody|cannot be had|no matter what|without momentum no matter|"
    r"does not answer since|is said and ignored|gives up its name draws)\b",
    re.IGNORECASE,
)
VERB = re.compile(r"(?:^ *|`)shoal ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The names that headings of a document can be linked by."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", head.lower()) for head in heads)
    return {head.replace(" ", "-") for head in plain}


@functools.cache
def source_names() -> set[str]:
    """What the house's own Python files are called."""
    folders = [ROOT / name for name in (*PACKAGES, "tests", "benchmarks", "docs")]
    return {path.name for folder in folders for path in folder.rglob("*.py")}


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


@pytest.mark.parametrize("document", PRESENT, ids=named)
def test_every_source_file_that_a_document_names_exists(document):
    lost = {
        path
        for path in SOURCE.findall(document.read_text())
        if not ((ROOT / path).is_file() if "/" in path else path in source_names())
    }
    assert lost == set()


@pytest.mark.parametrize("document", TODAY, ids=named)
def test_no_retired_word_is_in_a_document(document):
    assert RETIRED.findall(document.read_text()) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_retired_word_is_in_the_code(package):
    found = {
        str(path.relative_to(ROOT)): words
        for path in (ROOT / package).rglob("*.py")
        if (words := RETIRED.findall(path.read_text()))
    }
    assert found == {}


def test_every_word_of_the_glossary_is_in_the_code_where_it_says():
    rows = [
        line.split("|")
        for line in (ROOT / "docs" / "glossary.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| term ")
    ]
    assert len(rows) > 60
    terms = [row[1].strip() for row in rows]
    assert sorted(terms) == sorted(set(terms)), "one word per concept, one row per word"
    for row in rows:
        (path, name), *others = PLACE.findall(row[3])
        assert others == []
        assert is_defined(ast.parse((ROOT / path).read_text()).body, name), f"{path}:{name}"


def is_defined(body: list[ast.stmt], name: str) -> bool:
    """Whether these statements define `name`, which may be an attribute of a class: `A.b`."""
    first, _, rest = name.partition(".")
    if not first:
        return True
    for node in body:
        match node:
            case ast.ClassDef(name=found) if found == first:
                return is_defined(node.body, rest)
            case ast.FunctionDef(name=found) | ast.AnnAssign(target=ast.Name(id=found)):
                if found == first:
                    return not rest
            case ast.Assign(targets=[ast.Name(id=found)]) if found == first:
                return not rest
    return False


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX


def test_every_page_is_in_the_navigation_of_the_site():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    placed = set(re.findall(r"(?:- |: )([\w/-]+\.md)$", navigation, re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert placed == {page for page in pages if not page.startswith("decisions/0")}


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


LEFT_OUT = {
    "shoal_committed_tokens_total": "the progress says it",
    "shoal_duty_ratio": "its owner's choice",
    "shoal_evaluations_total": "work for others, and no sign of trouble",
    "shoal_fragments_held": "of a joiner, for minutes",
    "shoal_goodput_ratio": "the syncer's, of every learner",
    "shoal_guard_paused_since_timestamp_seconds": "the pause itself is a line",
    "shoal_guard_went_back_timestamp_seconds": "an alert",
    "shoal_is_leader": "the time without one",
    "shoal_is_parked": "held says more",
    "shoal_lag_versions": "the syncer's, of every learner",
    "shoal_leader_rtt_seconds": "a property of the line",
    "shoal_learner_heard_seconds": "the states say who is gone",
    "shoal_learner_merges_total": "the outcomes",
    "shoal_local_step_seconds": "tokens per second",
    "shoal_local_steps_total": "tokens per second",
    "shoal_log_records": "merges a minute",
    "shoal_merges_total": "of one daemon's life; the log's are there",
    "shoal_parameters": "does not change",
    "shoal_payload_bytes_total": "the network",
    "shoal_probes_total": "work for others, and no sign of trouble",
    "shoal_push_bytes_total": "the network",
    "shoal_pushes_merged_total": "the outcomes",
    "shoal_pushes_total": "the outcomes",
    "shoal_rounds_open": "changes by the second",
    "shoal_token_budget": "does not change",
    "shoal_tokens_per_second": "the syncer's, of every learner",
    "shoal_trained_tokens_total": "tokens per second",
    "shoal_uptime_seconds": "memory and processor begin anew with it",
    "shoal_work_seconds_total": "the goodput",
}
"""Metrics that the dashboard does without, and what tells the same or why nobody needs it."""


def test_every_metric_is_on_the_dashboard_or_left_out_for_a_reason():
    given = set(
        re.findall(r"^\| `(shoal_[a-z_]+)`", (ROOT / "docs/monitoring.md").read_text(), re.M)
    )
    shown = set(re.findall(r"shoal_[a-z_]+", (ROOT / "docs/monitoring/grafana.json").read_text()))
    assert len(given) > 40
    assert given - shown - LEFT_OUT.keys() == set(), "new: show it, or say why not"
    assert LEFT_OUT.keys() & shown == set(), "shown now"
    assert LEFT_OUT.keys() - given == set(), "gone"


def test_what_an_alert_watches_instead_is_an_alert():
    alerts = (ROOT / "docs/monitoring/alerts.yml").read_text()
    assert [
        name for name, why in LEFT_OUT.items() if why == "an alert" and name not in alerts
    ] == []


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
