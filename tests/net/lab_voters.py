"""A swarm with several voters in a network lab, and the judge of what it may not lose.

Every voter and learner is a process in a network of its own. What was certified on a disk is kept
in mind, and has to be in every syncer's log at the end.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import time

from host.files import keystore
from host.files.signed_project import read_signed
from protocol.errors import TransientError
from protocol.log.records import record_hash
from shoal.common import daemons
from shoal.project import file_commands
from shoal.project.template import create_text
from syncer_node.storage.voter_files import VoterFiles
from tests.net.lab_daemons import PORT, Daemons
from tests.net.test_swarm_processes import CHANGES, until
from tests.support.tiny_project import write_text

LEARNERS = ("ada", "bob")
DUTY = "0.2"
WELL_S = 60.0
OPEN_S = 180.0
"""Seven processes that import at once, and the first weights."""

TAKEOVER_S = 40.0
"""What a test waits for; how long it takes on a machine of its own, benchmarks/failover.py says."""

LAG_MAX = 8
"""Records that a standby may be behind at any moment while all is well."""

LOOK_S = 0.25
STEPS_EVERY_S = 3.0


class Voters:
    """Daemons of syncers `s0`, `s1`..., witnesses `w0`... and learners, each in its node."""

    def __init__(self, lab, folder, *, syncers=None, learners=LEARNERS):
        """`syncers`: those of the first charter, where not all nodes of that name are."""
        self.lab = lab
        self.daemons = Daemons(lab, folder)
        self.home = self.daemons.home
        self.syncers = syncers or tuple(node for node in lab.nodes if node[0] == "s")
        self.witnesses = tuple(node for node in lab.nodes if node[0] == "w")
        self.learners = tuple(learners)
        self.unheard = set()
        """Daemons that are cut off or stopped: whatever they say of themselves does not count."""
        self.kept = {}
        """Index -> hash of every record that was seen certified on a disk."""
        self.project = b""
        self.link = ""
        self.path = folder / "lab.shoal"

    # Beginning.

    @property
    def voters(self):
        return (*self.syncers, *self.witnesses)

    def sign(self, **changes):
        """The signed project, with all voters in its first charter."""
        folder = self.daemons.folder
        write_text(folder / "text.txt", chars=60_000)
        settings = {
            **CHANGES,
            "data.location": str(folder / "text.txt"),
            "limits.tokens": 10**9,
            "limits.evaluate_every": 1000,
            **changes,
        }
        head, _, _ = create_text("lab", changes=settings).partition("[[voters]]")
        toml = self.path.with_suffix(".toml")
        toml.write_text(head + "\n".join(self._table(node) for node in self.voters))
        file_commands.sign(toml, self.home, instance=self.syncers[0])
        self.project = read_signed(self.path).id

    def _table(self, node):
        role = self.role(node)
        key = keystore.load_or_create(self.home.identity(role, node)).key.hex()
        priority = 50 - 10 * int(node[1:]) if role == "syncer" else 0
        return f'[[voters]]\nkey = "{key}"\nrole = "{role}"\npriority = {priority}\n'

    @staticmethod
    def role(node):
        return {"s": "syncer", "w": "witness"}.get(node[0], "learner")

    def open(self, *learner_options):
        """Everybody, from the first voter to the first merges of all learners."""
        self.start(self.syncers[0])
        first = until(lambda: self._with_link(), timeout_s=WELL_S, what="a first syncer")
        self.link = first.join_link
        for node in self.voters[1:]:
            self.start(node)
        for node in self.learners:
            self.start(node, *learner_options)
        self.wait_well(OPEN_S)

    def _with_link(self):
        now = self.daemons.syncer(self.syncers[0])
        return now if now and now.join_link else None

    def start(self, node, *options):
        """A daemon, for the first time or again, with the same key and disk."""
        role, address = self.role(node), self.lab.address(node)
        if role == "learner":
            options = ("--duty", DUTY, "--no-evaluate", *options)
            self.daemons.join(node, self.link, *options)
            return
        join = ("--join", self.link) if self.link else ()
        self.daemons.start(
            node,
            *(role, "run", self.path, "--instance", node, "--listen", address),
            *("--port", str(PORT), "--host-address", f"/ip4/{address}/tcp/{PORT}"),
            *(*join, *options),
        )

    def kill(self, node):
        self.daemons.kill(node)

    def clone(self, node, other):
        """A syncer's key and disk, copied as they are, for another host."""
        shutil.copy(self.home.identity("syncer", node), self.home.identity("syncer", other))
        shutil.copytree(self.store(node), self.store(other), dirs_exist_ok=True)

    def stop(self, node, number=signal.SIGSTOP):
        """A signal to the daemon alone: its network engine goes on, as in a machine that hangs."""
        self.daemons.running[node].send_signal(number)

    # What they say.

    def status(self, node):
        """None while it does not answer, or is not to be believed."""
        if node in self.unheard or node not in self.daemons.running:
            return None
        return self.own_words(node)

    def own_words(self, node):
        """What it says, whoever can hear it."""
        role = self.role(node)
        found = [d for d in self.home.daemons() if (d.role, d.instance) == (role, node)]
        with contextlib.suppress(TransientError):
            return daemons.ask_status(found[0]) if found else None
        return None

    def leader(self):
        """(node, status) of the syncer that serves learners in the highest term, or None."""
        told = [(node, self.status(node)) for node in self.syncers]
        serving = [(node, one) for node, one in told if one and one.phase == "training"]
        return max(serving, key=lambda pair: pair[1].swarm.term, default=None)

    def other_leads(self, former):
        """(node, status) of another leader that has merged, or None."""
        found = self.leader()
        return found if found and found[0] != former and found[1].merges_here else None

    def local_steps(self):
        told = {node: self.status(node) for node in self.learners}
        return {node: one.local_step for node, one in told.items() if one}

    # Waiting.

    def wait_well(self, timeout_s=WELL_S):
        """Until a leader merges with all learners and all voters have everything."""
        trouble = [""]

        def is_well():
            self.daemons.check()
            trouble[0] = self.trouble()
            return not trouble[0]

        try:
            until(is_well, timeout_s=timeout_s, what="a swarm that is well")
        except AssertionError as error:
            raise AssertionError(f"{error}; {trouble[0]}") from None
        return self.leader()

    def trouble(self):
        """What is not well, in words; empty if all is."""
        found = self.leader()
        if found is None:
            return "nobody leads"
        node, leader = found
        for row in leader.seat.voters:
            if not row.is_here or row.lag is None or row.lag > LAG_MAX:
                return f"{node} waits for voter {row.key[:8]}: {row}"
        for name in self.syncers:
            if not (told := self.status(name)):
                return f"{name} does not answer"
            if name != node and told.phase != "standby":
                return f"{name} is {told.phase}: {told.sentence}"
            if leader.swarm.log_index - told.swarm.log_index > LAG_MAX:
                return f"{name} is at record {told.swarm.log_index}"
        merges = {peer.name: peer.merges for peer in leader.peers}
        for name in self.learners:
            if not merges.get(name):
                return f"{node} has merged nothing of {name}"
            if not (told := self.status(name)) or told.state != "training":
                return f"{name} does not train"
        return ""

    def watch(self, seconds):
        """Seconds in which every learner's local steps must go on."""
        ends_s = time.monotonic() + seconds
        before = self.local_steps()
        while (now_s := time.monotonic()) < ends_s:
            time.sleep(min(STEPS_EVERY_S, ends_s - now_s))
            if ends_s - now_s >= STEPS_EVERY_S:
                before = self.check_steps(before)

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
        now_s, before = time.monotonic(), self.local_steps()
        begun_s = since_s or now_s
        look_s, seconds = now_s + STEPS_EVERY_S, None
        while time.monotonic() < begun_s + TAKEOVER_S:
            if (now_s := time.monotonic()) >= look_s:
                before, look_s = self.check_steps(before), now_s + STEPS_EVERY_S
            found = self.leader()
            if found and found[0] != former:
                seconds = seconds or now_s - begun_s
                merges = {peer.name: peer.merges for peer in found[1].peers}
                if all(merges.get(name) for name in self.learners):
                    self.check_followed(found)
                    print(
                        f"another leader after {seconds:.1f} s, "
                        f"merged with all after {now_s - begun_s:.1f} s"
                    )
                    return seconds, *found
            time.sleep(LOOK_S)
        raise AssertionError(f"nobody has taken over from {former}: {self.trouble()}")

    def check_followed(self, found):
        """Learners say themselves whom they follow."""
        key = found[1].key
        for node in self.learners:
            until(
                lambda node=node: (s := self.status(node)) and s.swarm.leader == key,
                timeout_s=10.0,
                what=f"{node} follows {found[0]}",
            )

    # Records.

    def store(self, node):
        role = self.role(node)
        make = self.home.syncer_store if role == "syncer" else self.home.witness_store
        return make(self.project, node)

    def certified(self, node):
        """Index -> hash of every certified record on this disk."""
        files = VoterFiles(self.store(node))
        count = files.certified - files.floor.index
        frames = enumerate(files.log.frames(), start=files.floor.index + 1)
        return {at: record_hash(frame) for at, frame in frames if at <= files.floor.index + count}

    def keep_in_mind(self, *nodes):
        """What is certified on these disks now; two that differ in a record are an error."""
        for node in nodes or self.voters:
            for index, digest in self.certified(node).items():
                assert self.kept.setdefault(index, digest) == digest, (node, index)

    def check_kept(self):
        """Every record that was ever seen certified is in the log of every syncer that has it all.

        Records before a log's floor are in its state.
        """
        assert self.kept
        newest = max(self.kept)
        for node in self.syncers:
            until(
                lambda node=node: (s := self.status(node)) and s.swarm.log_index >= newest,
                timeout_s=WELL_S,
                what=f"{node} has record {newest}",
            )
            floor, held = VoterFiles(self.store(node)).floor.index, self.certified(node)
            for index, digest in self.kept.items():
                if index > floor:
                    assert held.get(index) == digest, (node, index)
        self.keep_in_mind()

    def check_outputs(self):
        for node in (*self.voters, *self.learners):
            assert "Traceback" not in self.daemons.output(node), node
