"""What `shoal doctor` concludes from what it measured. Pure: facts in, findings out."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from node.swarm_trial_facts import SwarmAnswer
from node.trainer.trial_facts import TrialAnswer
from protocol.project import Charter, Genesis

Verdict = Literal["good", "care", "trouble", "unknown"]

GIB: Final = 1 << 30
DISK_MIN: Final = GIB
DISK_AMPLE: Final = 10 * GIB
MEMORY_AMPLE: Final = 2 * GIB
"""The daemon and an idle trainer take about 1 GiB, nearly all of it libraries."""

PYTHONS: Final = ((3, 11), (3, 12))
CLOCK_S_MAX: Final = 3.0
"""Hosts of a swarm refuse each other's records beyond it."""

CYCLE_S_CARE: Final = 3600.0
CYCLE_S_MAX: Final = 86_400.0
"""Beyond a day between two pushes of a fragment its work is too old to be of use."""

TRAINING_BYTES: Final = 16
"""Per parameter, at least: weights, gradients and two moments, all f32."""

DAEMON_BYTES: Final = 12
"""Per parameter: value and momentum of every fragment, and the copy that is being evaluated."""

_ADDRESS = re.compile(r"/ip[46]/([^/]+)/")


class Finding(Struct, kw_only=True, frozen=True):
    """One thing that was looked at."""

    topic: str
    verdict: Verdict
    says: str
    remedy: str = ""
    """What to do, where something is to be done."""
    figures: dict[str, float | str | bool | None] = {}
    """The numbers behind it, for programs."""


class Needs(Struct, kw_only=True, frozen=True):
    """What a project asks of a learner whose speed is known."""

    parameters: int
    step_tokens: int
    local_steps: int
    payload_bytes_up: int
    """Of all fragments once."""
    payload_bytes_down: int
    fragment_bytes_max: int
    """The largest push."""
    pull_timeout_s: float
    token_budget: int


def needs_of(genesis: Genesis, charter: Charter) -> Needs:
    """What a learner of this project has to carry."""
    from protocol.fragments import build_layout
    from protocol.numerics.codecs import payload_bytes

    layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
    rounds = charter.rounds
    numels = [fragment.numel for fragment in layout.fragments]
    return Needs(
        parameters=layout.parameters,
        step_tokens=charter.inner.batch_sequences * genesis.data.sequence_tokens,
        local_steps=rounds.local_steps,
        payload_bytes_up=sum(payload_bytes(rounds.up_codec, numel) for numel in numels),
        payload_bytes_down=sum(payload_bytes(rounds.down_codec, numel) for numel in numels),
        fragment_bytes_max=max(payload_bytes(rounds.up_codec, numel) for numel in numels),
        pull_timeout_s=float(rounds.pull_timeout_s),
        token_budget=charter.limits.tokens,
    )


def python(version: tuple[int, int], shown: str, torch: str) -> Finding:
    """The interpreter, and PyTorch as its package names it (empty: not installed)."""
    figures: dict[str, float | str | bool | None] = {"python": shown, "torch": torch or None}
    if not torch:
        return Finding(
            topic="python",
            verdict="trouble",
            says=f"Python {shown}; PyTorch is not installed",
            remedy="Install Shoal again, into a virtual environment of its own.",
            figures=figures,
        )
    if version not in PYTHONS:
        return Finding(
            topic="python",
            verdict="care",
            says=f"Python {shown} is not among those that Shoal is tested with; PyTorch {torch}",
            remedy="Use Python 3.11 or 3.12.",
            figures=figures,
        )
    return Finding(
        topic="python", verdict="good", says=f"Python {shown}, PyTorch {torch}", figures=figures
    )


def accelerator(trial: TrialAnswer | None, present: Sequence[str]) -> Finding:
    """Whether the device works, and whether one lies idle.

    present: accelerators that the system names, whatever PyTorch makes of them.
    """
    if trial is None:
        return Finding(topic="accelerator", verdict="unknown", says="not tried (--quick)")
    figures: dict[str, float | str | bool | None] = {
        "device": trial.device,
        "name": trial.device_name,
        "backend": trial.backend,
        "bf16": trial.is_bf16,
    }
    if not trial.device:
        return Finding(
            topic="accelerator",
            verdict="trouble",
            says=f"no device can be used: {trial.trouble or 'the trial said nothing'}",
            remedy="Correct the driver, or name another device: --device cpu.",
            figures=figures,
        )
    if trial.device == "cpu" and present:
        return Finding(
            topic="accelerator",
            verdict="care",
            says=f"there is {', '.join(present)}, but this PyTorch ({trial.torch}) cannot use it",
            remedy="Install the PyTorch build for it, and its driver.",
            figures=figures,
        )
    if trial.device == "cpu":
        return Finding(
            topic="accelerator",
            verdict="good",
            says="none here; training uses the processor",
            figures=figures,
        )
    bf16 = ", bf16" if trial.is_bf16 else ", f32"
    return Finding(
        topic="accelerator",
        verdict="good",
        says=f"{trial.device}: {trial.device_name}, {trial.backend}{bf16}",
        figures=figures,
    )


def engine(swarm: SwarmAnswer | None) -> Finding:
    """Whether the network engine runs."""
    if swarm is None:
        return Finding(topic="engine", verdict="unknown", says="not tried (--quick)")
    if not swarm.is_engine_up:
        return Finding(
            topic="engine",
            verdict="trouble",
            says=f"the network engine does not run: {swarm.trouble}",
            remedy="Install Shoal again; the engine needs Linux and a processor it was built for.",
        )
    return Finding(
        topic="engine",
        verdict="good",
        says=f"it started in {swarm.engine_s:.1f} s" if swarm.engine_s else "it runs",
        figures={"start_s": round(swarm.engine_s, 2)},
    )


def clock(swarm: SwarmAnswer | None, kept: bool | None, error_s: float | None) -> Finding:
    """Whether the clock agrees with the swarm's, or with the system's time service.

    kept: what the kernel says about being kept by one; None where it says nothing.
    """
    figures: dict[str, float | str | bool | None] = {"kept": kept, "error_s": error_s}
    remedy = "Set it with NTP, for example: timedatectl set-ntp true"
    if swarm is not None and swarm.is_clock_off:
        return Finding(
            topic="clock",
            verdict="trouble",
            says=f"it differs from the swarm's by more than {CLOCK_S_MAX:g} s",
            remedy=remedy,
            figures=figures,
        )
    if swarm is not None and swarm.is_in_swarm:
        return Finding(
            topic="clock",
            verdict="good",
            says=f"within {CLOCK_S_MAX:g} s of the swarm's",
            figures=figures,
        )
    if kept and error_s is not None:
        is_off = error_s > CLOCK_S_MAX
        return Finding(
            topic="clock",
            verdict="care" if is_off else "good",
            says=f"kept by a time service, off by at most {error_s:.2g} s",
            remedy=remedy if is_off else "",
            figures=figures,
        )
    return Finding(
        topic="clock",
        verdict="unknown",
        says="cannot be told: no time service is known to keep it, and no swarm answered",
        remedy=f"Name a project to compare. {remedy}",
        figures=figures,
    )


def port(number: int, trouble: str) -> Finding:
    """Whether a port for hosting is free."""
    figures: dict[str, float | str | bool | None] = {"port": number}
    if trouble:
        return Finding(
            topic="port",
            verdict="care",
            says=trouble,
            figures=figures,
            remedy="Only a host that others must find needs it; learners do not.",
        )
    return Finding(topic="port", verdict="good", says=f"{number} is free", figures=figures)


def reach(swarm: SwarmAnswer | None) -> Finding:
    """Whether the swarm is reached, how, and whether it could reach us."""
    if swarm is None:
        return Finding(topic="reach", verdict="unknown", says="not tried (--quick)")
    outside = public_addresses(swarm.addresses)
    inward = (
        f"others can dial {outside[0]} unless a firewall is in between"
        if outside
        else "this machine has only private addresses, so nobody outside can dial it"
    )
    figures: dict[str, float | str | bool | None] = {
        "is_public": bool(outside),
        "hosts": float(len(swarm.hosts)),
        "answering": float(sum(bool(host.path) for host in swarm.hosts)),
    }
    if not swarm.hosts:
        return Finding(
            topic="reach",
            verdict="unknown",
            says=f"no swarm was asked; {inward}",
            remedy="Name a project: shoal doctor 'shoal:...'",
            figures=figures,
        )
    if not swarm.is_in_swarm:
        return Finding(
            topic="reach",
            verdict="trouble",
            says=f"not at all: {swarm.trouble}",
            remedy="See that this machine may open TCP connections outwards, and ask the "
            "project's host for a fresh link.",
            figures=figures,
        )
    told = [host for host in swarm.hosts if host.path]
    direct = sum(host.path == "direct" for host in told)
    rtts = [host.rtt_s for host in told if host.rtt_s is not None]
    quick = f", {min(rtts) * 1000:.0f} ms" if rtts else ""
    how = "direct" if direct or not told else "relayed"
    return Finding(
        topic="reach",
        verdict="good" if how == "direct" else "care",
        says=f"{how}{quick}; {max(len(told), 1)} of {len(swarm.hosts)} hosts of the link answer; "
        f"{inward}",
        remedy=""
        if how == "direct"
        else "Relays are slow. Forward a TCP port to this machine and name it with --port.",
        figures={**figures, "path": how, "rtt_s": min(rtts) if rtts else None},
    )


def public_addresses(addresses: Sequence[str]) -> list[str]:
    """Those of the engine's addresses that the whole internet could dial."""
    found = []
    for text in addresses:
        match = _ADDRESS.match(text)
        try:
            if match and ipaddress.ip_address(match[1]).is_global:
                found.append(text.partition("/p2p/")[0])
        except ValueError:
            continue
    return found


def disk(free_bytes: int, place: str) -> Finding:
    """Room for text, tape and weights."""
    says = f"{amount(free_bytes)} free at {place}"
    figures: dict[str, float | str | bool | None] = {"free_bytes": float(free_bytes)}
    if free_bytes < DISK_MIN:
        return Finding(
            topic="disk",
            verdict="trouble",
            says=says,
            figures=figures,
            remedy=f"Free at least {amount(DISK_MIN)}, or use another --home.",
        )
    verdict: Verdict = "good" if free_bytes >= DISK_AMPLE else "care"
    return Finding(
        topic="disk",
        verdict=verdict,
        says=says,
        figures=figures,
        remedy="" if verdict == "good" else "Large projects need more for their text.",
    )


def memory(available_bytes: int, total_bytes: int, limit: str) -> Finding:
    """What training may take. limit: what bounds it, in words, or empty."""
    bound = f", {limit}" if limit else ""
    figures: dict[str, float | str | bool | None] = {
        "available_bytes": float(available_bytes),
        "total_bytes": float(total_bytes),
    }
    is_ample = available_bytes >= MEMORY_AMPLE
    return Finding(
        topic="memory",
        verdict="good" if is_ample else "care",
        says=f"{amount(available_bytes)} of {amount(total_bytes)} available{bound}",
        remedy="" if is_ample else "Free some: daemon and trainer take 1 GiB before any model.",
        figures=figures,
    )


def speed(trial: TrialAnswer | None, what: str) -> Finding:
    """Measured tokens per second."""
    if trial is None:
        return Finding(topic="speed", verdict="unknown", says="not measured (--quick)")
    if not trial.tokens_per_s:
        return Finding(
            topic="speed",
            verdict="trouble" if not trial.is_out_of_memory else "unknown",
            says=f"not measured: {trial.trouble or 'the trial ended early'}",
            remedy="" if trial.is_out_of_memory else "Try another --device.",
        )
    return Finding(
        topic="speed",
        verdict="good",
        says=f"{trial.tokens_per_s:,.0f} tokens/s with {what}, "
        f"{trial.sequences} {'sequence' if trial.sequences == 1 else 'sequences'} at once",
        figures={"tokens_per_s": round(trial.tokens_per_s, 1), "sequences": float(trial.sequences)},
    )


def fit(trial: TrialAnswer | None, needs: Needs, available_bytes: int) -> Finding:
    """Whether the project's model fits, on the device and beside the daemon."""
    is_on_cpu = trial is None or trial.device in ("", "cpu")
    beside = DAEMON_BYTES * needs.parameters
    least = TRAINING_BYTES * needs.parameters
    taken = trial.memory_bytes if trial is not None and trial.memory_bytes else least
    device_room = available_bytes if is_on_cpu else (trial.device_bytes if trial else 0)
    figures: dict[str, float | str | bool | None] = {
        "parameters": float(needs.parameters),
        "training_bytes": float(taken),
        "daemon_bytes": float(beside),
        "device_bytes": float(device_room),
        "memory_bytes": float(available_bytes),
    }
    where = "memory" if is_on_cpu else "the device's memory"
    wanted = taken + (beside if is_on_cpu else 0)
    fits = wanted <= device_room and beside <= available_bytes
    if not fits or (trial is not None and trial.is_out_of_memory):
        return Finding(
            topic="fit",
            verdict="trouble",
            says=f"{needs.parameters:,} parameters do not fit: they take {amount(wanted)} of "
            f"{where}, and {amount(device_room)} is there",
            remedy="Free memory, or take part in a project with a smaller model.",
            figures=figures,
        )
    measured = "measured" if trial is not None and trial.memory_bytes else "at least"
    return Finding(
        topic="fit",
        verdict="good",
        says=f"{needs.parameters:,} parameters take {amount(wanted)} of {where} ({measured}), "
        f"{amount(device_room)} is there",
        figures=figures,
    )


def pace(trial: TrialAnswer | None, needs: Needs) -> Finding:
    """Whether this machine is fast enough for the project to have something of it."""
    if trial is None or not trial.tokens_per_s:
        return Finding(topic="pace", verdict="unknown", says="the speed was not measured")
    step_s = needs.step_tokens / trial.tokens_per_s
    cycle_s = needs.local_steps * step_s
    share = 86_400 * trial.tokens_per_s / needs.token_budget
    figures: dict[str, float | str | bool | None] = {
        "step_s": round(step_s, 3),
        "cycle_s": round(cycle_s, 1),
        "share_per_day": round(share, 6),
    }
    says = (
        f"a local step takes {duration(step_s)}, so each fragment is handed in every "
        f"{duration(cycle_s)}"
    )
    if cycle_s > CYCLE_S_MAX:
        return Finding(
            topic="pace",
            verdict="trouble",
            says=f"too slow for this project: {says}, too old by then to be of use",
            remedy="Use an accelerator, or take part in a project with a smaller model.",
            figures=figures,
        )
    a_day = "" if share >= 1 else f"; {share:.2g} of its tokens in a day"
    return Finding(
        topic="pace",
        verdict="care" if cycle_s > CYCLE_S_CARE else "good",
        says=says + a_day,
        figures=figures,
    )


def bandwidth(
    trial: TrialAnswer | None,
    swarm: SwarmAnswer | None,
    needs: Needs,
    *,
    up_max: int | None,
    down_max: int | None,
) -> Finding:
    """What the project takes of the line at this machine's speed, against what is known of it.

    up_max, down_max: the owner's limits, bytes per second.
    """
    rate = trial.tokens_per_s if trial is not None else 0.0
    per_s = rate / (needs.step_tokens * needs.local_steps)
    up = max(needs.payload_bytes_up * per_s, needs.fragment_bytes_max / needs.pull_timeout_s)
    down = needs.payload_bytes_down * per_s
    got = swarm.down_bytes_per_s if swarm is not None else 0.0
    figures: dict[str, float | str | bool | None] = {
        "needs_up": round(up, 1),
        "needs_down": round(down, 1),
        "measured_down": round(got, 1) or None,
    }
    says = f"the project takes {amount(up)}/s up and {amount(down)}/s down at this speed"
    for limit, wanted, word in ((up_max, up, "up"), (down_max, down, "down")):
        if limit is not None and limit < wanted:
            return Finding(
                topic="bandwidth",
                verdict="trouble",
                says=f"{says}; limits.{word}_bytes_per_s allows {amount(limit)}/s",
                remedy=f"Raise limits.{word}_bytes_per_s, or take part in a smaller project.",
                figures=figures,
            )
    if got and got < down:
        return Finding(
            topic="bandwidth",
            verdict="trouble",
            says=f"too slow for this project: {says}; {amount(got)}/s came from its hosts",
            remedy="Use a faster line, or take part in a project with a smaller model.",
            figures=figures,
        )
    if not got:
        return Finding(
            topic="bandwidth",
            verdict="unknown",
            says=f"{says}; no syncer was asked",
            figures=figures,
        )
    return Finding(
        topic="bandwidth",
        verdict="good",
        says=f"{says}; {amount(got)}/s came from its hosts; the way up shows only once joined",
        figures=figures,
    )


def worst(findings: Sequence[Finding]) -> Verdict:
    """The verdict on all of them: trouble, care or good. What is unknown hurts nobody."""
    told = {one.verdict for one in findings}
    if "trouble" in told:
        return "trouble"
    return "care" if "care" in told else "good"


def amount(count: float) -> str:
    """So many bytes, in words."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.3g} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """A length of time for people."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
