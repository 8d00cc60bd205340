"""The verbs of `shoal sim`: where each is, and what help says of it."""

from __future__ import annotations

from typing import Final

from shoal.common.choices import area

VERBS: Final = (
    ("attack", "attack_command:run",
     "Let some learners lie: what each attack does to one real model, under each rule of trust."),
    ("bandwidth", "scale:bandwidth",
     "The link that each method needs, beside the paper's table 13."),
    ("compare", "compare_command:run",
     "Train one real model in several ways: loss, bytes and virtual time side by side.\n\n"
     "Same text, same inner loop, equal tokens, paired seeds. Every finished run is kept: after an "
     "interruption, the same command goes on."),
    ("goodput", "scale:goodput",
     "Goodput and uptime under failures, beside the paper's table 1."),
    ("heterogeneous", "scale:heterogeneous",
     "Learners of two speeds: K = M, K = 1, K = 1 with grace."),
    ("honest", "honest_command:run",
     "What earned trust costs where nobody lies: learners alike, one slow, one with other text."),
    ("run", "run_command:run",
     "Run a swarm in virtual time and check what must hold; exit code 1 if it does not."),
    ("scavenge", "scale:scavenge",
     "Training time with borrowed machines."),
    ("scenarios", "run_command:list_scenarios",
     "List the scenarios that are built in."),
    ("spread", "spread_command:run",
     "How merged payloads reach hundreds or thousands of learners: from each other."),
    ("sweep", "run_command:sweep",
     "Run many seeds under faults; exit code 1, and how to see each again, if a promise breaks."),
    ("trend", "trend_command:run",
     "What `compare` found so far, by model size, tokens and merges. Runs nothing."),
)  # fmt: skip

sim_app = area("sim")
for verb, place, about in VERBS:
    sim_app.command(f"shoal.sim.{place}", name=verb, help=about)
