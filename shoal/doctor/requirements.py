"""Whether a machine suits a project: what the project asks, against what was measured.

Pure: facts in, findings out.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from host.files.local_settings import LearnerSettings, LimitSettings
from node.daemon.swarm_trial_facts import SwarmAnswer
from node.trainer.tools.trial_facts import TrialAnswer
from protocol.project import Charter, Genesis
from shoal.doctor.findings import Finding, Topic, amount, duration

CYCLE_S_CARE: Final = 3600.0
CYCLE_S_MAX: Final = 86_400.0
"""Beyond a day between two pushes of a fragment its work is too old to be of use."""

TRAINING_BYTES: Final = 16
"""Per parameter, at least: weights, gradients and two moments, all f32."""
EIGHT_BITS_SAVE: Final = 6
"""Of these, where moments take two bytes in place of eight."""

DAEMON_BYTES: Final = 12
"""Per parameter: value and momentum of every fragment, and the copy that is being evaluated."""

ON_DISK_BYTES: Final = 7
"""The same where value and momentum lie in files: that copy stays, and payloads."""

FLOPS_PER_TOKEN: Final = 6
"""Per parameter, forwards and backwards. Source: Kaplan et al., arXiv 2001.08361, section 2.1."""

FROZEN_FLOPS_PER_TOKEN: Final = 4
"""Per frozen parameter: its own gradient, a third of the work, is not computed."""


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
    frozen_bytes: int = 0
    """Of a frozen base model beside an adapter, as it is held."""
    frozen_parameters: int = 0
    optimizer_in_8_bits: bool = False
    """As the owner of this machine wants."""
    weights_on_disk: bool = False
    """The daemon's, as he wants."""

    @property
    def training_bytes(self) -> int:
        """In the trainer, at least."""
        each = TRAINING_BYTES - (EIGHT_BITS_SAVE if self.optimizer_in_8_bits else 0)
        return each * self.parameters + self.frozen_bytes

    @property
    def daemon_bytes(self) -> int:
        """Beside the trainer."""
        return (ON_DISK_BYTES if self.weights_on_disk else DAEMON_BYTES) * self.parameters

    @property
    def flops_per_token(self) -> int:
        """Forwards and backwards; nobody needs the gradients of frozen weights."""
        return FLOPS_PER_TOKEN * self.parameters + FROZEN_FLOPS_PER_TOKEN * self.frozen_parameters

    @property
    def size(self) -> str:
        """The model in words."""
        if not self.frozen_parameters:
            return f"{self.parameters:,} parameters"
        return f"{self.parameters:,} parameters beside {self.frozen_parameters:,} frozen ones"


def needs_of(genesis: Genesis, charter: Charter, owner: LearnerSettings | None = None) -> Needs:
    """What a learner of this project has to carry, on a machine whose owner wants it so."""
    owner = owner or LearnerSettings()
    from protocol.fragments import build_layout
    from protocol.numerics.payload_sizes import payload_bytes

    layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
    rounds, adapter = charter.rounds, genesis.adapter
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
        optimizer_in_8_bits=owner.optimizer_in_8_bits,
        weights_on_disk=owner.weights_on_disk,
        frozen_bytes=adapter.held_bytes if adapter is not None else 0,
        frozen_parameters=sum(one.numel for one in adapter.frozen) if adapter is not None else 0,
    )


def against(
    trial: TrialAnswer | None,
    swarm: SwarmAnswer | None,
    needs: Needs,
    available_bytes: int,
    limits: LimitSettings,
) -> list[Finding]:
    """Fit, pace and bandwidth, within what the owner allows."""
    return [
        fit(trial, needs, available_bytes),
        pace(trial, needs),
        bandwidth(
            trial, swarm, needs, up_max=limits.up_bytes_per_s, down_max=limits.down_bytes_per_s
        ),
    ]


def fit(trial: TrialAnswer | None, needs: Needs, available_bytes: int) -> Finding:
    """Whether the project's model fits, on the device and beside the daemon."""
    is_on_cpu = trial is None or trial.device in ("", "cpu")
    beside = needs.daemon_bytes
    least = needs.training_bytes
    taken = trial.memory_bytes if trial is not None and trial.memory_bytes else least
    device_room = available_bytes if is_on_cpu else (trial.device_bytes if trial else 0)
    seen = Topic(
        "fit",
        parameters=float(needs.parameters),
        training_bytes=float(taken),
        daemon_bytes=float(beside),
        device_bytes=float(device_room),
        memory_bytes=float(available_bytes),
    )
    where = "memory" if is_on_cpu else "the device's memory"
    wanted = taken + (beside if is_on_cpu else 0)
    fits = wanted <= device_room and beside <= available_bytes
    if not fits or (trial is not None and trial.is_out_of_memory):
        return seen.trouble(
            f"{needs.size} do not fit: they take {amount(wanted)} of "
            f"{where}, and {amount(device_room)} is there",
            _smaller(needs),
        )
    measured = "measured" if trial is not None and trial.memory_bytes else "at least"
    return seen.good(
        f"{needs.size} take {amount(wanted)} of {where} ({measured}), "
        f"{amount(device_room)} is there"
    )


def _smaller(needs: Needs) -> str:
    """What the owner of the machine can do about too little memory."""
    keys = {
        "learner.weights_on_disk": needs.weights_on_disk,
        "learner.optimizer_in_8_bits": needs.optimizer_in_8_bits,
    }
    left = [f"`shoal config set {key} true`" for key, is_set in keys.items() if not is_set]
    tries = f"try {' and '.join(left)}, " if left else ""
    return f"Free memory, {tries}or take part in a project with a smaller model."


def pace(trial: TrialAnswer | None, needs: Needs) -> Finding:
    """Whether this machine is fast enough for the project to have something of it."""
    if trial is None or not trial.tokens_per_s:
        return Topic("pace").unknown("the speed was not measured")
    step_s = needs.step_tokens / trial.tokens_per_s
    cycle_s = needs.local_steps * step_s
    share = 86_400 * trial.tokens_per_s / needs.token_budget
    seen = Topic(
        "pace", step_s=round(step_s, 3), cycle_s=round(cycle_s, 1), share_per_day=round(share, 6)
    )
    says = (
        f"a local step takes {duration(step_s)}, so each fragment is handed in every "
        f"{duration(cycle_s)}"
    )
    if cycle_s > CYCLE_S_MAX:
        return seen.trouble(
            f"too slow for this project: {says}, too old by then to be of use",
            "Use an accelerator, or take part in a project with a smaller model.",
        )
    a_day = "" if share >= 1 else f"; {share:.2g} of its tokens in a day"
    return seen.found("care" if cycle_s > CYCLE_S_CARE else "good", says + a_day)


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
    seen = Topic(
        "bandwidth",
        needs_up=round(up, 1),
        needs_down=round(down, 1),
        measured_down=round(got, 1) or None,
    )
    says = f"the project takes {amount(up)}/s up and {amount(down)}/s down at this speed"
    for limit, wanted, word in ((up_max, up, "up"), (down_max, down, "down")):
        if limit is not None and limit < wanted:
            return seen.trouble(
                f"{says}; limits.{word}_bytes_per_s allows {amount(limit)}/s",
                f"Raise limits.{word}_bytes_per_s, or take part in a smaller project.",
            )
    if got and got < down:
        return seen.trouble(
            f"too slow for this project: {says}; {amount(got)}/s came from its hosts",
            "Use a faster line, or take part in a project with a smaller model.",
        )
    if not got:
        return seen.unknown(f"{says}; no syncer was asked")
    return seen.good(
        f"{says}; {amount(got)}/s came from its hosts; the way up shows only once joined"
    )
