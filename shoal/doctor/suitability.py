"""Whether this machine may join a project: said before it does, and not found out by looping.

What follows from sizes alone is computed. A trial is made only where it could change the verdict:
no machine is too slow for a small model, and most models that are too large are so on paper.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from host.files.home import Home
from host.files.local_settings import Settings
from node.trainer.devices import named_devices, ranks_wanted
from node.trainer.tools.trial_facts import TrialAnswer
from protocol.project import Charter, Genesis, is_files
from shoal.doctor import diagnosis, joining, probes, requirements
from shoal.doctor.findings import Finding
from shoal.doctor.requirements import Needs

SLOWEST_FLOPS: Final = 1e9
"""Of floating point operations a second any machine that runs PyTorch does more."""

_MARK: Final = "suits"

log = logging.getLogger("shoal.join")

Judge = Callable[[Genesis, Charter], str]


def judge_of(
    home: Home, project: bytes, settings: Settings, data: str | None = None
) -> Judge | None:
    """Says what speaks against joining; None where this machine was found to suit before.

    data: where the owner of this machine has the text.
    """
    mark = home.project(project) / _MARK
    judged = "\n".join((settings.learner.device or "best", *([data] if data else [])))
    if mark.is_file() and mark.read_text() == judged:
        return None

    def judge(genesis: Genesis, charter: Charter) -> str:
        found = examined(genesis, charter, settings)
        is_read = genesis.data.source == "chats" and genesis.published is None
        if is_read and data is not None and is_files("chats", data):
            found.append(diagnosis.own_chats(data, joining.own_text(genesis.data, data)))
        bad = [one for one in found if one.verdict == "trouble"]
        if not bad:
            mark.write_text(judged)
            for one in found:
                if one.verdict == "care":
                    log.warning("%s", one.says)
            return ""
        said = "; ".join(one.says for one in bad)
        remedies = " ".join(dict.fromkeys(one.remedy for one in bad))
        return (
            f"This machine does not suit {genesis.name}: {said}. {remedies} To join all the same: "
            "--anyway. To learn more: shoal doctor 'shoal:...'"
        )

    return judge


def examined(genesis: Genesis, charter: Charter, settings: Settings) -> list[Finding]:
    """What is found of fit, pace and bandwidth. Takes a trial's time where one is needed."""
    needs = requirements.needs_of(genesis, charter, settings.learner)
    available, _, _ = probes.memory(settings.limits.ram_bytes_max)
    most, trial = probes.most_memory(available), devices_together(settings)
    # What somebody's own code takes is not known before it trains.
    if trial is None and genesis.trainer is None and wants_trial(needs, available, most):
        log.info("trying the project's model once on this machine before joining")
        tokens = genesis.data.sequence_tokens
        wish = probes.wish_for(genesis.model, charter.inner, tokens, settings, genesis)
        trial = _told(probes.try_training(wish))
    return requirements.against(trial, None, needs, available, settings.limits)


def devices_together(settings: Settings) -> TrialAnswer | None:
    """The room of accelerators that hold a model together; nothing of them is tried.

    None where one device holds it, and on processors, whose ranks have the same memory.
    """
    learner = settings.learner
    if not learner.sharded or named_devices(learner.device)[:1] == ("cpu",):
        return None
    room = ranks_wanted(learner.device, learner.ranks) * probes.most_memory(0)
    return TrialAnswer(device="accelerators", device_bytes=room) if room else None


def wants_trial(needs: Needs, available: int, most: int) -> bool:
    """Whether a trial could change what sizes alone say.

    available: bytes of memory. most: of memory or of the largest accelerator.
    """
    if needs.training_bytes > most:
        return False  # It fits nowhere.
    is_tight = requirements.fit(None, needs, available).verdict == "trouble"
    flops = needs.flops_per_token * needs.step_tokens * needs.local_steps
    return is_tight or flops / SLOWEST_FLOPS > requirements.CYCLE_S_MAX


def _told(trial: TrialAnswer) -> TrialAnswer | None:
    """A trial that could not be made says nothing about the machine."""
    if trial.tokens_per_s or trial.is_out_of_memory:
        return trial
    log.warning("the trial could not run: %s", trial.trouble)
    return None
