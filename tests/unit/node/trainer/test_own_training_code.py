"""Training code of somebody's own: found, made, measured, and gone on with bit for bit."""

from __future__ import annotations

import sys
import types

import msgspec
import numpy as np
import pytest
import torch

from node.machine.moments import moments_numel
from node.trainer import making
from node.trainer.failures import StepAbandoned, TrainerFailure
from node.trainer.files import read_fragments
from node.trainer.gain import Change, measure_gain
from node.trainer.model import layout_of
from node.trainer.own import extras, installed
from node.trainer.setup import THREAD_VARIABLES, TrainerSetup
from node.trainer.tools import initialise
from node.trainer.tools.export import export_model
from protocol import decoders
from protocol.errors import UserError
from protocol.project import Genesis, encode
from shoal.project import project_file
from tests.support.own_loops import install, project_text, signed_example
from tests.support.tiny_project import configure


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    torch.set_num_threads(1)
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")  # Put back afterwards.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch)
    return tmp_path


def opened(genesis, folder, **changes):
    inner = msgspec.structs.replace(making.FOR_WEIGHTS, batch_sequences=8, beta1=0.9)
    return TrainerSetup(configure(genesis, folder, inner=msgspec.msgpack.encode(inner), **changes))


def fed(genesis, folder, blocks=20):
    setup = opened(genesis, folder)
    setup.loop.reader.append(((0, blocks),))
    setup.loop.progress = 0.5
    return setup


def test_a_project_names_what_is_installed_and_everybody_needs_the_same(folder, monkeypatch):
    genesis = signed_example(folder, "digits")
    assert (genesis.trainer.name, genesis.trainer.package) == ("digits", "own-loops")
    assert genesis.trainer.version == "0.1.0"
    assert genesis.data.blocks == 1500 // 20
    assert genesis.model.tensors[0].shape == (16, 1, 3, 3)
    assert decoders.msgpack_decoder(Genesis).decode(encode(genesis)) == genesis
    assert installed.require(genesis.trainer) == "own_loops.digits:Digits"
    newer = msgspec.structs.replace(genesis.trainer, version="0.2.0")
    with pytest.raises(UserError, match=r"of own-loops 0\.2\.0, and own-loops 0\.1\.0 is inst"):
        installed.require(newer)
    with pytest.raises(UserError, match=r"not installed here.*pip install own-loops==0\.1\.0"):
        installed.require(msgspec.structs.replace(genesis.trainer, name="numbers"))
    install(folder, monkeypatch, package="other-loops")
    with pytest.raises(UserError, match=r"Several.*other-loops 0\.1\.0, own-loops 0\.1\.0"):
        installed.find("digits")


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("digits", {"model__trainer": "numbers"}, "No trainer numbers is installed"),
        ("digits", {"outer__probes_frac": 0.02}, "no method `losses`"),
        ("digits", {"training__moments": "peer"}, r'"peer" only with Shoal\'s own trainer'),
        ("digits", {"model__architecture": "olmo2"}, "model.architecture must be left out"),
        ("digits", {"model__trainer": "os:system"}, "model.trainer must"),
        ("digits", {"data__block_sequences": 2000}, "1500 samples"),
        ("letters", {"data__source": "own", "data__location": ""}, "brings no data"),
        ("letters", {"model__config__width": "wide"}, "cannot be made"),
    ],
)
def test_what_cannot_be_signed_is_refused_in_words(folder, name, changes, words):
    with pytest.raises(UserError, match=words):
        signed_example(folder, name, **changes)


def test_own_data_needs_code_that_brings_it(folder):
    path = folder / "plain.toml"
    text = project_text("digits").replace('trainer = "digits"', 'architecture = "olmo2"')
    path.write_text(text)
    with pytest.raises(UserError, match=r'"own" only with model\.trainer'):
        project_file.read_file(path)


class Wanting:
    def step(self, work): ...


class Halved:
    tables = ("missing",)

    def __init__(self, start): ...

    def tensors(self):
        return {"weight": torch.zeros(3, dtype=torch.float16)}

    step = state = load_state = heldout_loss = tensors


def placed(monkeypatch, **members):
    module = types.ModuleType("somebodys_code")
    for name, value in members.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "somebodys_code", module)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("somebodys_code", "names no class"),
        ("somebodys_code:Absent", "cannot be imported"),
        ("nobodys_code:Absent", "cannot be imported"),
        ("somebodys_code:Wanting", "lacks tensors, state, load_state, heldout_loss"),
        ("somebodys_code:number", "it is none"),
    ],
)
def test_a_place_without_training_code_is_refused_in_words(monkeypatch, place, words):
    placed(monkeypatch, Wanting=Wanting, number=7)
    with pytest.raises(UserError, match=words):
        installed.load(place)


def test_tensors_that_cannot_be_sent_are_refused(folder, monkeypatch):
    placed(monkeypatch, Halved=Halved)
    genesis = signed_example(folder, "digits")
    with pytest.raises(TrainerFailure, match="weight as no f32 tensor"):
        opened(genesis, folder, trainer="somebodys_code:Halved")
    with pytest.raises(
        TrainerFailure, match=r"the project has a tensor 0\.weight .* the trainer none"
    ):
        opened(genesis, folder, trainer="own_loops.letters:Letters")


def test_the_seed_makes_the_first_weights(folder):
    genesis = signed_example(folder, "digits")
    (folder / "genesis").write_bytes(encode(genesis))
    out = folder / "weights.safetensors"
    assert initialise.main([str(folder / "genesis"), str(out)]) == 0
    written = read_fragments(out, layout_of(genesis))
    for one, other in zip(written, opened(genesis, folder).view.copies(), strict=True):
        assert one.tobytes() == other.tobytes()
    other_seed = msgspec.structs.replace(genesis, seed=genesis.seed + 1)
    drawn = making.first_weights("own_loops.digits:Digits", other_seed, folder)
    assert any(a.tobytes() != b.tobytes() for a, b in zip(drawn, written, strict=True))


def state_of(setup):
    theta = setup.view.copies()
    moments = [np.empty(moments_numel(one), np.float32) for one in setup.layout.fragments]
    for at, values in enumerate(moments):
        setup.moments.read(at, values)
    rest = extras.encode(setup.trainer.state())
    return theta, moments, rest, setup.loop.reader.mark(), setup.loop.random_state()


def go_on(setup, state):
    theta, moments, rest, mark, random = state
    for at, values in enumerate(moments):
        setup.view.write(at, theta[at])
        setup.moments.write(at, values)
    if rest:
        setup.trainer.load_state(extras.decode(rest))
    setup.loop.reader.go_to(*mark)
    setup.loop.set_random_state(*random)


@pytest.mark.parametrize("name", ["digits", "letters"])
@pytest.mark.parametrize("steps", [0, 3])
def test_what_goes_on_elsewhere_takes_the_same_steps_bit_for_bit(folder, name, steps):
    genesis = signed_example(folder, name)
    first = fed(genesis, folder)
    for _ in range(steps):
        first.loop.step()
    state = state_of(first)
    losses = [first.loop.step().loss for _ in range(4)]
    second = opened(genesis, folder, seed_salt=9)
    second.loop.progress = 0.5
    second.loop.local_step = steps
    go_on(second, state)
    assert [second.loop.step().loss for _ in range(4)] == losses
    for one, other in zip(first.view.copies(), second.view.copies(), strict=True):
        assert one.tobytes() == other.tobytes()


def test_samples_are_counted_as_the_project_says(folder):
    setup = fed(signed_example(folder, "digits"), folder)
    setup.loop.step()
    assert setup.loop.tokens_total == 8 * 64
    assert setup.ready().train_tokens == 1500 * 64
    assert setup.ready().corpus_matches
    numbers = np.concatenate([setup.corpus.sequences(at) for at in range(75)])
    assert sorted(numbers) == list(range(1500))


@pytest.mark.parametrize("name", ["digits", "letters"])
def test_measuring_other_weights_leaves_those_in_training(folder, name):
    genesis = signed_example(folder, name)
    setup, calm = fed(genesis, folder), fed(genesis, folder)
    for one in (setup, calm):
        one.loop.step()
    other = [values + np.float32(0.5) for values in setup.view.copies()]
    heldout = setup.corpus.heldout(50)
    wrecked = setup.loop.evaluate(heldout, layout=setup.layout, values=np.concatenate(other))
    own = np.concatenate(setup.view.copies())
    assert setup.loop.evaluate(heldout, layout=setup.layout, values=own) != wrecked
    assert setup.loop.step().loss == calm.loop.step().loss

    def cut(_):
        raise StepAbandoned

    if name == "letters":
        text = setup.corpus.sequences(3)
        same = Change(0, setup.view.copies()[0])
        gains = measure_gain(
            setup.loop, setup.layout, own, same, (text, text), worked=lambda _: None
        )
        assert len(gains) == 2
        with pytest.raises(StepAbandoned):
            setup.loop.step(cut)
    assert setup.loop.step().loss == calm.loop.step().loss


class Keeps:
    """Keeps something of its own beside moments."""

    def __init__(self, start):
        self.weight = torch.zeros(2, device=start.device)
        self.seen = torch.zeros((), dtype=torch.int64)

    def tensors(self):
        return {"weight": self.weight}

    def step(self, work):
        self.seen += 1
        return 0.0

    def state(self):
        return {"": {"seen": self.seen}}

    def load_state(self, state):
        self.seen = state.get("", {}).get("seen", self.seen)

    def heldout_loss(self, samples, rest):
        return 0.0


def test_what_code_keeps_beside_moments_goes_on_too_within_bounds(monkeypatch):
    one = Keeps(types.SimpleNamespace(device="cpu"))
    one.step(None)
    other = Keeps(types.SimpleNamespace(device="cpu"))
    other.load_state(extras.decode(extras.encode(one.state())))
    assert int(other.seen) == 1
    assert other.seen.dtype == torch.int64
    assert extras.decode(b"") == {}
    assert extras.encode({"weight": {"first": one.weight, "step": one.seen}}) == b""
    one.seen = torch.zeros(extras.EXTRAS_BYTES_MAX)
    with pytest.raises(TrainerFailure, match="at most 1,048,576"):
        extras.encode(one.state())


def test_it_is_exported_as_tensors_by_their_names_without_the_code(folder, monkeypatch):
    genesis = signed_example(folder, "digits")
    fragments = making.first_weights("own_loops.digits:Digits", genesis, folder)
    monkeypatch.setattr(installed, "load", lambda place: pytest.fail("it was loaded"))
    export_model(genesis, fragments, folder / "out", folder / "cache")
    from safetensors.numpy import load_file

    tensors = load_file(folder / "out" / "model.safetensors")
    assert tensors["0.weight"].shape == (16, 1, 3, 3)
    about = msgspec.json.decode((folder / "out" / "trainer.json").read_bytes())
    assert about["trainer"]["name"] == "digits"
    assert about["config"] == {"width": 16}


def test_a_text_is_written_by_code_that_can(folder):
    setup = opened(signed_example(folder, "letters"), folder)
    text = setup.generate("the", 5, seed=1, temperature=1.0, values=None)
    assert text == setup.generate("the", 5, seed=1, temperature=1.0, values=None)
    digits = opened(signed_example(folder, "digits"), folder)
    assert digits.generate("the", 5, seed=1, temperature=1.0, values=None) == ""
