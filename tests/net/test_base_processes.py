"""Real processes on loopback: from a published model to an exported one, over two homes."""

from __future__ import annotations

import shutil

import pytest
import torch
import transformers

from host.files.pinned_files import PinnedFiles
from host.files.signed_project import read_signed
from node.trainer.base_model import first_weights
from protocol.numerics.codecs import flush
from shoal.common.exit_codes import ExitCode
from syncer_node.storage.store import find_checkpoint, read_checkpoint
from tests.net.swarms import TinySwarm
from tests.support.base_folder import CHAT, END, base_folder

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]

TOKENS = 20_000


def test_a_syncer_without_the_published_model_says_what_to_do_and_begins_once_it_has_it(tmp_path):
    folder = base_folder(tmp_path / "model")
    with TinySwarm(tmp_path) as swarm:
        swarm.prepare(base=str(folder), data__tokenizer="base")
        moved = folder.rename(tmp_path / "moved")
        swarm.start_syncer()
        assert swarm.ended("syncer") == ExitCode.FAILED
        assert f"There is no folder {folder} with the base model folder:model" in swarm.output(
            "syncer"
        )
        swarm.begin("--from", str(moved))


def test_friends_train_a_published_model_whose_files_only_the_first_host_has(tmp_path):
    folder = base_folder(tmp_path / "model")
    with TinySwarm(tmp_path) as swarm:
        swarm.prepare(
            base=str(folder),
            data__tokenizer="base",
            training__learning_rate=0.001,
            limits__evaluate_every=10,
        )
        swarm.begin()
        genesis = read_signed(swarm.signed).genesis
        named = first_weights(genesis, folder)
        shutil.rmtree(folder)  # From here on weights and tokenizer come from peers.
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
        assert PinnedFiles(elsewhere / "cache", genesis.tokenizer).missing() == []

        store = swarm.home.syncer_store(swarm.project_id)
        first = read_checkpoint(find_checkpoint(store, "0")).theta
        for values, theirs in zip(first, named, strict=True):
            flush(theirs)
            assert values.tobytes() == theirs.tobytes()

        swarm.until(lambda: (now := swarm.syncer()) and now.swarm.curve, "a measured checkpoint")
        swarm.run("export", "--to", "trained", "--checkpoint", "latest")
    trained = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "trained")
    assert trained.config.rope_parameters["rope_type"] == "llama3"
    assert (tokenizer.eos_token, tokenizer.chat_template) == (END, CHAT)
    ids = tokenizer("the quiet harbour", return_tensors="pt").input_ids
    with torch.no_grad():
        produced = trained.generate(ids, max_new_tokens=8, do_sample=False)
    assert produced.shape[1] <= ids.shape[1] + 8
    with torch.no_grad():
        loss = float(trained(input_ids=ids, labels=ids).loss)
    base_folder(tmp_path / "again")
    fresh = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "again", dtype=torch.float32
    )
    with torch.no_grad():
        assert loss < float(fresh(input_ids=ids, labels=ids).loss)
