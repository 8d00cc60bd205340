"""Real processes on loopback: friends train an adapter, and only one of them has the model."""

from __future__ import annotations

import re
import shutil

import peft
import pytest
import torch
import transformers

from host.files.held_base import HeldBase
from host.files.home import Home
from host.files.signed_project import read_signed
from protocol.fragments import build_layout
from protocol.numerics.codecs import payload_bytes
from tests.net.swarms import TinySwarm, shoal
from tests.support.base_folder import base_folder

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]

TOKENS = 20_000
ADAPTER = {
    "model__fragments": 2,
    "model__adapter__rank": 4,
    "model__adapter__alpha": 8.0,
    "data__tokenizer": "base",
    "training__learning_rate": 0.01,
    "training__weight_decay": 0.0,
    "limits__evaluate_every": 10,
}


def test_two_learners_train_an_adapter_and_the_frozen_model_comes_from_peers(tmp_path):
    folder = base_folder(tmp_path / "model")
    with TinySwarm(tmp_path) as swarm:
        swarm.prepare(base=str(folder), **ADAPTER)
        shutil.rmtree(folder)  # Whoever signed has what is frozen in the home's cache.
        swarm.begin()
        genesis = read_signed(swarm.signed).genesis
        swarm.start_learner("ada")
        elsewhere = tmp_path / "elsewhere"
        swarm.start(
            "learner",
            "bob",
            *("join", swarm.link, "--home", str(elsewhere), "--instance", "bob", "--name", "bob"),
            *("--listen", "127.0.0.1", "--device", "cpu", "--threads", "1", "--log-text"),
            *("--data", str(tmp_path / "text.txt")),
        )
        swarm.all_merge("ada", "bob")
        swarm.until(
            lambda: (now := swarm.syncer()) and now.swarm.tokens > TOKENS, f"{TOKENS} tokens"
        )
        assert HeldBase(elsewhere / "cache", genesis).missing() == []
        assert "fetching the frozen base model folder:model" in swarm.output("bob")

        now = swarm.until(
            lambda: (now := swarm.syncer()) and len(now.swarm.curve) > 1 and now, "measurements"
        )
        losses = [point[2] for point in now.swarm.curve]
        assert losses[-1] < losses[0]
        layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
        adapter = sum(one.numel for one in genesis.model.tensors)
        assert layout.parameters == adapter < 0.2 * sum(one.numel for one in genesis.adapter.frozen)
        per_sync = sum(payload_bytes("int4", one.numel) for one in layout.fragments)
        assert now.payload_bytes / now.merges_here * len(layout.fragments) <= 1.05 * per_sync

        for name in ("ada", "bob"):
            swarm.kill(name)  # Else the next checkpoint would come between the two exports.
        said = swarm.run("export", "--to", "adapter", "--adapter", "--checkpoint", "latest")
        (step,) = re.findall(r"global step ([\d,]+)", said)[:1]
        step = step.replace(",", "")
        swarm.run("export", "--to", "merged", "--step", step, "--dtype", "f32")
    base = transformers.AutoModelForCausalLM.from_pretrained(
        base_folder(tmp_path / "again"), dtype=torch.float32
    )
    ids = torch.frombuffer(bytearray(b"the quiet harbour at noon"), dtype=torch.uint8).long()[None]
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        first = float(base.eval()(input_ids=ids, labels=ids).loss)
        beside = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
        learned = float(beside(input_ids=ids, labels=ids).loss)
        assert float(merged(input_ids=ids, labels=ids).loss) == pytest.approx(learned, abs=1e-3)
    assert learned < first
    assert "peft" in (tmp_path / "adapter" / "README.md").read_text()


def test_who_has_the_model_takes_the_frozen_part_from_it_and_another_one_is_refused(tmp_path):
    folder = base_folder(tmp_path / "model")
    other = base_folder(tmp_path / "other", seed=8)
    with TinySwarm(tmp_path) as swarm:
        swarm.prepare(base=str(folder), **ADAPTER)
        swarm.begin()
        home = Home(tmp_path / "elsewhere")
        options = ["join", swarm.link, "--listen", "127.0.0.1", "--device", "cpu"]
        options += ["--data", str(tmp_path / "text.txt")]
        refused = shoal(home, *options, "--from", str(other))
        assert refused.returncode == 2
        assert "The tensor model.embed_tokens.weight in" in refused.stderr
        swarm.start(
            "learner",
            "bob",
            *(*options, "--home", str(home.root), "--instance", "bob", "--name", "bob"),
            *("--from", str(folder), "--threads", "1", "--log-text"),
        )
        swarm.all_merge("bob")
        assert f"reading the frozen base model from {folder}" in swarm.output("bob")
        assert "fetching the frozen base model" not in swarm.output("bob")
