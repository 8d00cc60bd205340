"""Rewrites the parts of the documents that the code knows better: diagrams, messages, bounds.

Each part lies between `<!-- generated: NAME -->` and `<!-- end generated -->` in a Markdown file.
`python docs/generate.py` rewrites what is stale; with `--check` it only names it and exits 1.
"""

from __future__ import annotations

import argparse
import ast
import inspect as source_of
import re
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import msgspec
from msgspec import inspect as shape

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from host.control.metrics import metrics_of  # noqa: E402
from host.files.local_settings import Settings  # noqa: E402
from node.machine.moments_client import REJOIN_TRANSITIONS, Rejoin  # noqa: E402
from node.machine.moments_server import SERVER_TRANSITIONS, MomentsServerState  # noqa: E402
from node.machine.snapshot_participant import PART_TRANSITIONS, Part  # noqa: E402
from node.machine.syncer_link import LINK_TRANSITIONS, Link  # noqa: E402
from node.machine.trainer_states import TRAINER_TRANSITIONS, TrainerState  # noqa: E402
from protocol import invites, limits, messages, project, status  # noqa: E402
from protocol.log import records  # noqa: E402
from protocol.rounds import ROUND_TRANSITIONS, RoundState  # noqa: E402
from protocol.snapshots import manifest, vector_clock  # noqa: E402
from shoal.__main__ import PACKAGES  # noqa: E402
from shoal.common import settings_file  # noqa: E402
from shoal.common.exit_codes import MEANINGS  # noqa: E402
from shoal.common.toml_tables import allowed  # noqa: E402
from shoal.project.presets import NOT_PUBLISHED, PRESETS  # noqa: E402
from shoal.project.template import ADAPTER, SECTIONS, toml_value  # noqa: E402
from simulator.attack.attacks import ATTACKS  # noqa: E402
from simulator.attack.layers import LAYERS  # noqa: E402
from syncer_node.machine.leadership import PHASE_TRANSITIONS, Phase  # noqa: E402
from syncer_node.raft.context import ROLE_TRANSITIONS, Role  # noqa: E402

FILES = (
    ROOT / "docs" / "architecture.md",
    ROOT / "docs" / "attacks.md",
    ROOT / "docs" / "operating.md",
    ROOT / "docs" / "protocol.md",
    ROOT / "docs" / "protocol-reference.md",
    ROOT / "docs" / "decisions" / "index.md",
    ROOT / "docs" / "election.md",
    ROOT / "docs" / "settings.md",
    ROOT / "docs" / "monitoring.md",
    ROOT / "docs" / "volunteering.md",
)
MARK = re.compile(r"<!-- generated: ([a-z-]+) -->\n(.*?)<!-- end generated -->", re.DOTALL)


def diagram(transitions: Mapping[tuple[Enum, str], Enum], begin: Enum) -> str:
    """A transition table as a Mermaid state diagram."""
    states = list(type(begin))
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{state.value}" as {state.name}' for state in states]
    lines.append(f"    [*] --> {begin.name}")
    lines += [
        f"    {before.name} --> {after.name}: {trigger}"
        for (before, trigger), after in transitions.items()
    ]
    leaving = {before for before, _ in transitions}
    lines += [f"    {state.name} --> [*]" for state in states if state not in leaving]
    return "\n".join([*lines, "```"])


def notes(module: ModuleType, kind: str | None = None) -> dict[str, str]:
    """The string below each assignment of a module, or of a class in it."""
    body = ast.parse(source_of.getsource(module)).body
    if kind is not None:
        found = [one for one in body if isinstance(one, ast.ClassDef) and one.name == kind]
        body = found[0].body
    told = {}
    for node, after in pairwise(body):
        name = None
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if name is not None and is_text:
            told[name] = " ".join(str(after.value.value).split())  # type: ignore[union-attr]
    return told


def kind_in_words(kind: Any) -> str:
    """A field's type as a reader of the wire needs it."""
    match kind:
        case shape.Metadata():
            return kind_in_words(kind.type)
        case shape.StructType():
            return str(kind.cls.__name__)
        case shape.VarTupleType() | shape.ListType():
            most = f", at most {kind.max_length:,}" if kind.max_length else ""
            return f"list of {kind_in_words(kind.item_type)}{most}"
        case shape.DictType():
            return "map"
        case shape.UnionType():
            parts = [one for one in kind.types if not isinstance(one, shape.NoneType)]
            if len(parts) == len(kind.types):
                return "one of the bodies below"
            return " or ".join([*(kind_in_words(one) for one in parts), "nil"])
    return scalar_in_words(kind)


def scalar_in_words(kind: Any) -> str:
    """The type of a field that has no parts."""
    match kind:
        case shape.IntType(ge=0, le=most) if most == 2**62:
            return "count"
        case shape.IntType():
            return f"integer {kind.ge} to {kind.le if kind.le is not None else kind.lt:,}"
        case shape.FloatType():
            return "real"
        case shape.BoolType():
            return "true or false"
        case shape.StrType():
            return f"text, at most {kind.max_length:,}" if kind.max_length else "text"
        case shape.BytesType():
            if kind.min_length is not None and kind.min_length == kind.max_length:
                return f"{kind.max_length} bytes"
            return f"bytes, at most {kind.max_length:,}"
        case shape.LiteralType():
            return " / ".join(f"`{value}`" for value in kind.values)
    raise AssertionError(f"no words for {kind}")


def struct_text(kind: type[msgspec.Struct], module: ModuleType, sender: str = "") -> str:
    """A struct with its fields, in the order in which they are written."""
    told = notes(module, kind.__name__)
    described = shape.type_info(kind)
    assert isinstance(described, shape.StructType)
    label = f"`{described.tag}`" if described.tag is not None else ""
    head = ", ".join(word for word in (label, sender) if word)
    first = " ".join((kind.__doc__ or "").split())
    lines = [f"**{kind.__name__}**{f' ({head})' if head else ''}. {first}", ""]
    for field in described.fields:
        note = f": {told[field.name]}" if field.name in told else ""
        lines.append(f"- `{field.name}`, {kind_in_words(field.type)}{note}")
    if not described.fields:
        lines.append("- no fields")
    return "\n".join(lines)


def messages_text() -> str:
    """Every message of the control stream."""
    ways = {
        "learner to syncer": get_args(messages.LearnerMessage),
        "syncer to learner": get_args(messages.SyncerMessage),
        "between voters": get_args(messages.VoterMessage),
        "learner to learner": get_args(messages.DonorMessage),
    }
    parts = []
    for kind in get_args(messages.Message):
        found = [way for way, kinds in ways.items() if kind in kinds]
        word = {0: "to or from a learner", 1: found[0] if found else ""}.get(len(found))
        home = sys.modules[kind.__module__]
        parts.append(struct_text(kind, home, word or ", ".join(found)))
    return "\n\n".join(parts)


def parts_text() -> str:
    """What messages and records are made of."""
    kinds = (
        messages.Envelope,
        messages.PushHeader,
        messages.Cursor,
        vector_clock.VectorClock,
        manifest.PartBooks,
        messages.Vote,
        messages.Certificate,
        messages.CertifiedRecord,
        messages.FragmentIndex,
        invites.Invite,
    )
    return "\n\n".join(struct_text(kind, sys.modules[kind.__module__]) for kind in kinds)


def records_text() -> str:
    """The record, its parts, and every body."""
    plain = (records.Record, records.Span, records.StateDigests, records.Contribution)
    kinds = (*plain, *get_args(records.Body))
    return "\n\n".join(struct_text(kind, records) for kind in kinds)


def project_text() -> str:
    """Genesis and charter."""
    kinds = (
        project.Genesis,
        project.ModelSpec,
        project.TensorSpec,
        project.DataSpec,
        project.BaseSpec,
        project.BaseTensor,
        project.FirstState,
        project.AdapterSpec,
        project.FrozenTensor,
        project.TokenizerSpec,
        project.PinnedFile,
        project.Charter,
        project.Voter,
        project.InnerSpec,
        project.OuterSpec,
        project.RoundSpec,
        project.LimitSpec,
    )
    return "\n\n".join(struct_text(kind, project) for kind in kinds)


def limits_text() -> str:
    """Every bound with its reason."""
    told = notes(limits)
    lines = ["| bound | value | why |", "|---|---|---|"]
    for name, value in vars(limits).items():
        if name.isupper():
            shown = f"{value:,}" if isinstance(value, int) else f"{value:g}"
            lines.append(f"| `{name}` | {shown} | {told.get(name, '')} |")
    return "\n".join(lines)


def exit_codes_text() -> str:
    """What scripts may rely on."""
    lines = ["| code | meaning |", "|---|---|"]
    return "\n".join([*lines, *(f"| {int(code)} | {text} |" for code, text in MEANINGS.items())])


KINDS: dict[str, type[msgspec.Struct]] = {
    "project": project.Genesis,
    "model": project.Genesis,
    "model.adapter": project.AdapterSpec,
    "model.merge": project.MergeRules,
    "data": project.DataSpec,
    "training": project.InnerSpec,
    "outer": project.OuterSpec,
    "rounds": project.RoundSpec,
    "limits": project.LimitSpec,
    "seat": project.Charter,
}
"""Where the type of a key stands that a project file may hold; the rest has none of its own."""


def settings_text() -> str:
    """Every key of a project file: its range, its values, its meaning."""
    paper = PRESETS["paper"]
    parts = []
    for section in (*SECTIONS[:2], ADAPTER, *SECTIONS[2:]):
        kind = KINDS.get(section.name)
        types = {one.name: one.type for one in msgspec.structs.fields(kind)} if kind else {}
        if section.name == "admission":
            types = {"rule": project.AdmissionRule}
        if section.name == "page":
            types = {"about": project.Text}
        if section.name == "guard":
            types = {"rule": project.GuardRule}
        lines = [f"**`[{section.name}]`** {section.title}", ""]
        lines += ["| key | may be | `small` | `paper` | |", "|---|---|---|---|---|"]
        for line in section.lines:
            key = f"{section.name}.{line.key}"
            usual = toml_value(line.value)
            cell = f"`{toml_value(paper.values[key])}`" if key in paper.values else ""
            if NOT_PUBLISHED in paper.comments.get(key, ""):
                cell = f"{cell or f'`{usual}`'} n.p."
            words = allowed(types[line.key]) if line.key in types else ""
            cells = (f"`{line.key}`", words, f"`{usual}`", cell, line.comment)
            lines.append("| " + " | ".join(one.replace("|", "\\|") for one in cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def examples() -> dict[str, status.DaemonStatus]:
    """A status of each kind of daemon in which everything has a value."""
    about = status.ProjectStatus(
        id="", name="", fragments=1, parameters=1, token_budget=1, local_steps=1, quorum=1
    )
    swarm = status.SwarmStatus(
        curve=[(1, 1, 1.0)],
        best_loss=1.0,
        guard_above=1.0,
        pause=status.PauseStatus(
            at_s=1.0,
            global_step=1,
            loss=1.0,
            best_loss=1.0,
            best_global_step=1,
            best_checkpoint=1,
            words="",
            record="",
        ),
        restored=status.RestoredStatus(
            at_s=1.0,
            paused_s=1.0,
            global_step=1,
            loss=1.0,
            best_loss=1.0,
            best_global_step=1,
            best_checkpoint=1,
            words="",
        ),
    )
    plain = {"key": "", "name": "", "pid": 1, "version": "", "uptime_s": 0.0, "sentence": ""}
    shared = {**plain, "project": about, "network": status.NetworkStatus()}
    seat = status.SeatStatus(role="", epoch=0, term=0, leader="", leaderless_s=0.0)
    peer = status.PeerRow(key="", name="", device="", state="", heard_s=0.0, goodput=1.0)
    lag = {"p50_s": 0.0, "p99_s": 0.0, "max_s": 0.0}
    learner = status.NodeStatus(
        **shared,
        swarm=swarm,
        state="training",
        link="",
        link_detail="",
        heard_s=0.0,
        rtt_s=0.0,
        trainer="",
        trainer_detail="",
        trainer_pid=None,
        device="",
        micro_batch=None,
        loss=0.0,
        goodput=1.0,
        guest=status.GuestStatus(),
        loop_lag=lag,
    )
    syncer = status.SyncerStatus(
        **shared,
        swarm=swarm,
        phase="",
        join_link="",
        peers=[peer],
        slack_s=0.0,
        seat=seat,
        loop_lag=lag,
    )
    witness = status.WitnessStatus(**shared, seat=seat, log_index=0, stored_from=0)
    return {"learner": learner, "syncer": syncer, "witness": witness}


def metrics_text() -> str:
    """Every metric, what it means, and which daemons give it."""
    given: dict[str, tuple[str, str, list[str]]] = {}
    for role, example in examples().items():
        for metric in metrics_of(msgspec.to_builtins(example)):
            suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
            name = f"{metric.name}{suffix}"
            given.setdefault(name, (metric.type, metric.documentation, []))[2].append(role)
    lines = ["| metric | of | |", "|---|---|---|"]
    for name, (_, words, roles) in sorted(given.items()):
        lines.append(f"| `{name}` | {', '.join(roles)} | {words} |")
    return "\n".join(lines)


def local_settings_text() -> str:
    """Every key of the owner's settings: what it may be, its default, its meaning."""
    parts = []
    for section in msgspec.structs.fields(Settings):
        lines = [f"**`[{section.name}]`** {section.type.__doc__.partition(': ')[2]}", ""]
        lines += ["| key | may be | default | |", "|---|---|---|---|"]
        for key in settings_file.keys().values():
            if key.name.startswith(f"{section.name}."):
                usual = settings_file.as_text(key.name, key.default)
                words = f"{key.about} Unit: {key.unit}." if key.unit else key.about
                shown = f"`{usual}`" if usual not in ("", "unset") else ""
                lines.append(f"| `{key.name}` | {key.allowed} | {shown} | {words} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def attacks_text() -> str:
    """What `shoal sim attack` can do."""
    lines = [f"| `{name}` | {attack.about} |" for name, attack in ATTACKS.items()]
    return "\n".join(["| attack | what each attacker hands in or does |", "|---|---|", *lines])


def layers_text() -> str:
    """What `shoal sim attack --without` can leave out."""
    lines = [f"| `{name}` | {layer.about} |" for name, layer in LAYERS.items()]
    return "\n".join(["| layer | |", "|---|---|", *lines])


def rooms_text() -> str:
    """Every folder of the packages with its own two lines, the upper floors first."""
    lines = []
    for package in reversed(PACKAGES):
        for folder in [ROOT / package, *sorted((ROOT / package).rglob("*/"))]:
            start = folder / "__init__.py"
            if not start.exists():
                continue
            said = ast.get_docstring(ast.parse(start.read_text(encoding="utf-8"))) or ""
            depth = len(folder.relative_to(ROOT).parts) - 1
            lines.append(
                f"{'    ' * depth}- `{folder.relative_to(ROOT)}/`: {' '.join(said.split())}"
            )
    return "\n".join(lines)


def decisions_text() -> str:
    """Every page about a decision, by its title."""
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0][2:] for page in pages]
    return "\n".join(f"- [{title}]({page.name})" for title, page in zip(titles, pages, strict=True))


PARTS: dict[str, Callable[[], str]] = {
    "attacks": attacks_text,
    "layers": layers_text,
    "decisions": decisions_text,
    "rooms": rooms_text,
    "link": lambda: diagram(LINK_TRANSITIONS, Link.WAITING),
    "inner": lambda: diagram(TRAINER_TRANSITIONS, TrainerState.DOWN),
    "rejoin": lambda: diagram(REJOIN_TRANSITIONS, Rejoin.IDLE),
    "part": lambda: diagram(PART_TRANSITIONS, Part.IDLE),
    "giving": lambda: diagram(SERVER_TRANSITIONS, MomentsServerState.IDLE),
    "round": lambda: diagram(ROUND_TRANSITIONS, RoundState.OPEN),
    "phase": lambda: diagram(PHASE_TRANSITIONS, Phase.STARTING),
    "roles": lambda: diagram(ROLE_TRANSITIONS, Role.FOLLOWING),
    "messages": messages_text,
    "parts": parts_text,
    "records": records_text,
    "project": project_text,
    "limits": limits_text,
    "exit-codes": exit_codes_text,
    "settings": settings_text,
    "metrics": metrics_text,
    "local-settings": local_settings_text,
}


def rewritten(text: str) -> str:
    """`text` with every generated part as it should be. KeyError for an unknown name."""
    return MARK.sub(
        lambda found: (
            f"<!-- generated: {found[1]} -->\n{PARTS[found[1]]()}\n<!-- end generated -->"
        ),
        text,
    )


def main() -> int:
    """The exit code: 1 if something is stale and may only be checked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when stale")
    is_checking = parser.parse_args().check
    code = 0
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        fresh = rewritten(text)
        if fresh == text:
            continue
        name = path.relative_to(ROOT)
        if is_checking:
            print(f"{name} is stale; run: python docs/generate.py")
            code = 1
        else:
            path.write_text(fresh, encoding="utf-8")
            print(f"rewrote {name}")
    return code


if __name__ == "__main__":
    sys.exit(main())
