"""What `shoal doctor` concludes from what it measured. Pure: facts in, findings out."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

from host.network import own_network
from node.daemon.swarm_trial_facts import SwarmAnswer
from node.trainer.tools.trial_facts import TrialAnswer
from protocol.project import TrainerSpec
from shoal.doctor.findings import Finding, OwnText, Topic, Verdict, amount

GIB: Final = 1 << 30
DISK_MIN: Final = GIB
DISK_AMPLE: Final = 10 * GIB
MEMORY_AMPLE: Final = 2 * GIB
"""The daemon and an idle trainer take about 1 GiB, nearly all of it libraries."""

PYTHONS: Final = ((3, 11), (3, 12))
CLOCK_S_MAX: Final = 3.0
"""Hosts of a swarm refuse each other's records beyond it."""

_ADDRESS = re.compile(r"/ip[46]/([^/]+)/")


def _untried(topic: str) -> Finding:
    return Topic(topic).unknown("skipped (--quick)")


def _too_busy(topic: str, busy: str) -> Finding:
    return Topic(topic).unknown(f"not measured: {busy}", "Try again when it is quieter.")


def python(version: tuple[int, int], shown: str, torch: str) -> Finding:
    """The interpreter, and PyTorch as its package names it (empty: not installed)."""
    seen = Topic("python", python=shown, torch=torch or None)
    if not torch:
        return seen.trouble(
            f"Python {shown}; PyTorch is not installed",
            "Install Shoal again, into a virtual environment of its own.",
        )
    if version not in PYTHONS:
        return seen.care(
            f"Python {shown} is not among those that Shoal is tested with; PyTorch {torch}",
            "Use Python 3.11 or 3.12.",
        )
    return seen.good(f"Python {shown}, PyTorch {torch}")


def training_code(spec: TrainerSpec, lacking: str) -> Finding:
    """Whether the training code that a project names is here. lacking: why it is not."""
    seen = Topic("trainer", name=spec.name, package=spec.package, version=spec.version)
    if not lacking:
        return seen.good(f"{spec.name} of {spec.package} {spec.version} is installed")
    says, _, remedy = lacking.partition(" It is code")
    return seen.trouble(says, "It is code" + remedy if remedy else "")


def own_chats(path: str, found: OwnText) -> Finding:
    """Whether this machine has chats for a project that trains on them. path: where they are."""
    seen = Topic("chats", used=float(found.used))
    if found.trouble:
        return seen.trouble(found.trouble, "Name another folder with --data.")
    says = f"{found.used:,} chats in {path} can be used"
    if found.notes:
        return seen.found("care", f"{says}; {'; '.join(found.notes)}")
    return seen.good(says)


def accelerator(trial: TrialAnswer | None, present: Sequence[str]) -> Finding:
    """Whether the device works, and whether one lies idle.

    present: accelerators that the system names, whatever PyTorch makes of them.
    """
    if trial is None:
        return _untried("accelerator")
    seen = Topic(
        "accelerator",
        device=trial.device,
        name=trial.device_name,
        backend=trial.backend,
        bf16=trial.is_bf16,
    )
    if not trial.device and trial.busy:
        return _too_busy("accelerator", trial.busy)
    if not trial.device:
        return seen.trouble(
            f"no device can be used: {trial.trouble or 'the trial printed nothing'}",
            "Fix the driver, or name another device: --device cpu.",
        )
    if trial.device == "cpu" and present:
        return seen.care(
            f"there is {', '.join(present)}, but this PyTorch ({trial.torch}) cannot use it",
            "Install the PyTorch build for it, and its driver.",
        )
    if trial.device == "cpu":
        return seen.good(f"none found; training uses the CPU{', in bf16' if trial.is_bf16 else ''}")
    bf16 = ", bf16" if trial.is_bf16 else ", f32"
    return seen.good(f"{trial.device}: {trial.device_name}, {trial.backend}{bf16}")


def engine(swarm: SwarmAnswer | None) -> Finding:
    """Whether the network engine runs."""
    if swarm is None:
        return _untried("engine")
    if not swarm.is_engine_up and swarm.busy:
        return _too_busy("engine", swarm.busy)
    if not swarm.is_engine_up:
        return Topic("engine").trouble(
            f"the network engine does not run: {swarm.trouble}",
            "Install Shoal again; the engine needs Linux and a processor it was built for.",
        )
    return Topic("engine", start_s=round(swarm.engine_s, 2)).good(
        f"it started in {swarm.engine_s:.1f} s" if swarm.engine_s else "it runs"
    )


def clock(swarm: SwarmAnswer | None, kept: bool | None, error_s: float | None) -> Finding:
    """Whether the clock agrees with the swarm's, or with the system's time service.

    kept: what the kernel says about being kept by one; None where it says nothing.
    """
    seen = Topic("clock", kept=kept, error_s=error_s)
    remedy = "Set it with NTP, for example: timedatectl set-ntp true"
    if swarm is not None and swarm.is_clock_off:
        return seen.trouble(f"it differs from the swarm's by more than {CLOCK_S_MAX:g} s", remedy)
    if swarm is not None and swarm.is_in_swarm:
        return seen.good(f"within {CLOCK_S_MAX:g} s of the swarm's")
    if kept and error_s is not None:
        is_off = error_s > CLOCK_S_MAX
        return seen.found(
            "care" if is_off else "good",
            f"synchronized by a time service, off by at most {error_s:.2g} s",
            remedy if is_off else "",
        )
    return seen.unknown(
        "unknown: no time service seems to run, and no swarm answered",
        f"Name a project to compare. {remedy}",
    )


def port(number: int, trouble: str) -> Finding:
    """Whether a port for hosting is free."""
    seen = Topic("port", port=number)
    if trouble:
        return seen.care(trouble, "Only a host that others must find needs it; learners do not.")
    return seen.good(f"{number} is free")


def reach(swarm: SwarmAnswer | None) -> Finding:
    """Whether the swarm is reached, how, and whether it could reach us."""
    if swarm is None:
        return _untried("reach")
    is_unclear = bool(swarm.busy) and not swarm.is_swarm_away and not swarm.is_in_swarm
    if is_unclear and (swarm.hosts or not swarm.is_engine_up):
        return _too_busy("reach", swarm.busy)
    outside, inward = public_addresses(swarm.addresses), _inward(swarm)
    seen = Topic(
        "reach",
        is_public=bool(outside),
        hosts=float(len(swarm.hosts)),
        answering=float(sum(bool(host.path) for host in swarm.hosts)),
    )
    if not swarm.hosts:
        return seen.unknown(
            f"no swarm was asked; {inward}", "Name a project: shoal doctor 'shoal:...'"
        )
    if not swarm.is_in_swarm:
        remedy = (
            "See that this machine may open TCP connections outwards, and ask the project's host "
            "for a fresh link."
        )
        if own_network.is_of_this_machine(swarm.trouble):
            remedy = ""  # It is said already, and nobody else can help.
        return seen.trouble(f"not at all: {swarm.trouble}", remedy)
    told = [host for host in swarm.hosts if host.path]
    direct = sum(host.path == "direct" for host in told)
    rtts = [host.rtt_s for host in told if host.rtt_s is not None]
    quick = f", {min(rtts) * 1000:.0f} ms" if rtts else ""
    way = "directly" if direct or not told else "through relays"
    how = swarm.reach if swarm.reach in _REACHED else "unknown"
    seen.figures |= {"path": how, "rtt_s": min(rtts) if rtts else None}
    return seen.found(
        "care" if how in ("relayed", "outward") or way != "directly" else "good",
        f"{_REACHED.get(how, '')}{max(len(told), 1)} of {len(swarm.hosts)} hosts of the link "
        f"answer {way}{quick}; {inward}{_by_router(swarm.router)}",
        _opening(how, swarm.port),
    )


_REACHED: Final = {"direct": "direct; ", "relayed": "relayed; ", "outward": "not from outside; "}


def _inward(swarm: SwarmAnswer) -> str:
    """Whether others could dial this host, by what they found or by its addresses alone."""
    outside = public_addresses(swarm.addresses)
    if swarm.tried_to_dial:
        tried = f"{swarm.could_dial} of {swarm.tried_to_dial} that tried could reach port"
        carried = ", others relay streams to it" if swarm.reach == "relayed" else ""
        return f"{tried} {swarm.port} here{carried}"
    if outside:
        return f"others can dial {outside[0]} unless a firewall is in between"
    return "this machine has only private addresses, so nobody outside can dial it"


def _by_router(sentence: str) -> str:
    """What came of asking the router, as the end of a sentence."""
    return f"; {sentence[0].lower()}{sentence[1:].rstrip('.')}" if sentence else ""


def _opening(how: str, port: int) -> str:
    """What to do about a NAT, if anything."""
    open_it = f"forward TCP port {port} to this machine and name it with --port {port}"
    if how == "relayed":
        return f"Training works anyway. To send weights to others at full speed, {open_it}."
    if how == "outward":
        return f"Training works so, but nothing can be fetched from here. To be of use, {open_it}."
    return ""


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
    seen = Topic("disk", free_bytes=float(free_bytes))
    if free_bytes < DISK_MIN:
        return seen.trouble(says, f"Free at least {amount(DISK_MIN)}, or use another --home.")
    verdict: Verdict = "good" if free_bytes >= DISK_AMPLE else "care"
    return seen.found(
        verdict, says, "" if verdict == "good" else "Large projects need more for their text."
    )


def memory(available_bytes: int, total_bytes: int, limit: str) -> Finding:
    """What training may take. limit: what bounds it, in words, or empty."""
    bound = f", {limit}" if limit else ""
    seen = Topic("memory", available_bytes=float(available_bytes), total_bytes=float(total_bytes))
    is_ample = available_bytes >= MEMORY_AMPLE
    return seen.found(
        "good" if is_ample else "care",
        f"{amount(available_bytes)} of {amount(total_bytes)} available{bound}",
        "" if is_ample else "Free some: the daemon and its trainer take 1 GiB before any model.",
    )


def speed(trial: TrialAnswer | None, what: str) -> Finding:
    """Measured tokens per second."""
    if trial is None:
        return Topic("speed").unknown("not measured (--quick)")
    if not trial.tokens_per_s and trial.busy:
        return _too_busy("speed", trial.busy)
    if not trial.tokens_per_s:
        return Topic("speed").found(
            "trouble" if not trial.is_out_of_memory else "unknown",
            f"not measured: {trial.trouble or 'the trial ended early'}",
            "" if trial.is_out_of_memory else "Try another --device.",
        )
    return Topic(
        "speed", tokens_per_s=round(trial.tokens_per_s, 1), sequences=float(trial.sequences)
    ).good(
        f"{trial.tokens_per_s:,.0f} tokens/s with {what}, "
        f"{trial.sequences} {'sequence' if trial.sequences == 1 else 'sequences'} at once"
    )
