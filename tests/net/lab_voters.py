"""A swarm with several voters in a network lab, and the judge of what it may not lose.

Every voter and learner is a process in a network of its own. What was certified on a disk is kept
in mind, and has to be in every syncer's log at the end.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import time

from shoal.local_swarm.swarm import HANG_S, LAG_MAX
from tests.net.lab_swarm import LabSwarm
from tests.net.swarms import Merging

LEARNERS = ("ada", "bob")
DUTY = "0.2"
TAKEOVER_S = 300.0
"""A guard; how long it takes on a machine of its own, benchmarks/failover.py says."""

OPEN_S = 900.0
"""A guard for seven processes that import at once on a busy machine."""

STEPS_EVERY_S = 3.0


def _unless_gone(source, target):
    """A running daemon writes and removes files while somebody copies its folder."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


class Voters(LabSwarm):
    """Daemons of syncers `s0`, `s1`..., witnesses `w0`... and learners, each in its node."""

    def __init__(self, lab, folder, *, syncers=None, learners=LEARNERS):
        """`syncers`: those of the first charter, where not all nodes of that name are."""
        super().__init__(lab, folder)
        named = syncers or [node for node in lab.nodes if node[0] == "s"]
        self.voters = dict.fromkeys(named, "syncer")
        self.voters |= {node: "witness" for node in lab.nodes if node[0] == "w"}
        self.trained = tuple(learners)
        self.unheard = set()
        """Daemons that are cut off or stopped: whatever they say of themselves does not count."""
        self.kept = {}
        """Index -> every record that was seen certified on a disk."""
        self.prepare(voters=self.voters, limits__evaluate_every=1000)

    # Beginning.

    def open(self):
        """Everybody, from the first voter to the first merges of all learners."""
        self.start_first()
        for node in (*list(self.voters)[1:], *self.trained):
            self.start_again(node)
        self.wait_well(OPEN_S)

    def start_again(self, node):
        """A daemon, for the first time or again, with the same key and disk."""
        match node[0]:
            case "s":
                self.start_syncer(node)
            case "w":
                self.start_witness(node)
            case _:
                self.start_learner(node, "--duty", DUTY, "--no-evaluate")

    def clone(self, node, other):
        """A syncer's key and disk, copied as they are, for another host."""
        shutil.copy(self.home.identity("syncer", node), self.home.identity("syncer", other))
        copy = self.home.syncer_store(self.project_id, other)
        shutil.copytree(self.store(node), copy, copy_function=_unless_gone, dirs_exist_ok=True)

    def stop(self, node, number=signal.SIGSTOP):
        """A signal to the daemon alone: its network engine goes on, as in a machine that hangs."""
        self.running[node].process.send_signal(number)

    # What they say.

    def ask(self, name):
        """None while it does not answer, or is not to be believed."""
        if name in self.unheard or name not in self.running:
            return None
        return super().ask(name)

    def own_words(self, node):
        """What it says, whoever can hear it."""
        return super().ask(node)

    def local_steps(self):
        told = {node: self.learner(node) for node in self.learners}
        return {node: one.local_step for node, one in told.items() if one}

    # Waiting.

    def wait_well(self, limit_s=HANG_S):
        """Until a leader merges with all learners and all voters have everything."""
        merging = Merging()

        def is_well():
            found = None if self.trouble() else self.leader()
            return found and merging.names(found[1]) >= set(self.learners) and found

        found = self.within(limit_s, is_well, "a swarm that is well")
        assert found, self.trouble() or "not every learner is in a merge"
        return found

    def trouble(self):
        """What is not well, in words; empty if all is."""
        found = self.leader()
        if found is None or (why := super().trouble()):
            return why if found else "nobody leads"
        node, leader = found
        for name in self.syncers:
            told = self.syncer(name)
            if told is None or (name != node and told.phase != "standby"):
                return f"{name} is {told.phase}: {told.sentence}" if told else f"{name} is away"
            if leader.swarm.log_index - told.swarm.log_index > LAG_MAX:
                return f"{name} is at record {told.swarm.log_index}"
        merges = {peer.name: peer.merges for peer in leader.peers}
        lacking = [name for name in self.learners if not merges.get(name)]
        return f"{node} has merged nothing of {', '.join(lacking)}" if lacking else ""

    def watch(self, seconds):
        """Seconds in which every learner's local steps must go on."""
        ends_s = time.monotonic() + seconds
        before = self.local_steps()
        while (now_s := time.monotonic()) < ends_s:
            time.sleep(min(STEPS_EVERY_S, ends_s - now_s))
            if ends_s - now_s >= STEPS_EVERY_S:
                before = self.check_steps(before)

    def wait_merge(self, before):
        """Until more is merged than the status `before` tells; (node, status) of the leader then.

        How soon that is depends on what else the machine does.
        """

        def has_merged():
            found = self.leader()
            return found and found[1].swarm.global_step > before.swarm.global_step and found

        return self.until(has_merged, "another merge")

    def check_steps(self, before):
        """AssertionError if a learner's local steps stand where they stood; where they stand."""
        now = self.local_steps()
        assert now.keys() == before.keys() == set(self.learners), (before, now)
        assert all(now[node] > before[node] for node in now), (before, now)
        return now

    def wait_takeover(self, former, since_s=None):
        """Until another syncer leads and has merged with all learners; (seconds, node, status).

        Local steps must go on all the while. `since_s`: when the former one was lost, if not now.
        """
        begun_s = since_s or time.monotonic()
        steps, look_s, led_s = self.local_steps(), time.monotonic() + STEPS_EVERY_S, None
        merging = Merging()

        def has_merged():
            nonlocal steps, look_s, led_s
            now_s, found = time.monotonic(), self.leader()
            if now_s >= look_s:
                steps, look_s = self.check_steps(steps), now_s + STEPS_EVERY_S
            if not found or found[0] == former:
                return None
            led_s = led_s or now_s - begun_s
            return found if merging.names(found[1]) >= set(self.learners) else None

        found = self.until(has_merged, f"a successor of {former}", limit_s=TAKEOVER_S)
        self.check_followed(found)
        print(
            f"another leader after {led_s:.1f} s, "
            f"merged with all after {time.monotonic() - begun_s:.1f} s"
        )
        return led_s, *found

    def check_followed(self, found):
        """Learners say themselves whom they follow."""
        key = found[1].key
        for node in self.learners:
            self.until(
                lambda node=node: (told := self.learner(node)) and told.swarm.leader == key,
                f"{node} follows {found[0]}",
            )

    # Records.

    def keep_in_mind(self, *nodes):
        """What is certified on these disks now; two that differ in a record are an error."""
        for node in nodes or self.voters:
            for index, record in self.certified(node).items():
                assert self.kept.setdefault(index, record) == record, (node, index)

    def check_kept(self):
        """Every record that was ever seen certified is in the log of every syncer that has it all.

        Records before a log's floor are in its state.
        """
        assert self.kept
        newest = max(self.kept)
        for node in self.syncers:
            self.until(
                lambda node=node: (s := self.syncer(node)) and s.swarm.log_index >= newest,
                f"{node} has record {newest}",
            )
            floor, held = self.floor(node), self.certified(node)
            for index, record in self.kept.items():
                if index > floor:
                    assert held.get(index) == record, (node, index)
        self.keep_in_mind()

    def check_outputs(self):
        for node in (*self.voters, *self.learners):
            assert "Traceback" not in self.output(node), node
