"""How many held-out digits an exported model knows: `python -m own_loops.accuracy FOLDER`."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file

from own_loops.digits import HELDOUT, Digits


def accuracy(folder):
    """The share of held-out images whose digit the model in `folder` names."""
    config = json.loads((folder / "trainer.json").read_text())["config"]
    inner = SimpleNamespace(weight_decay=0.0)
    trainer = Digits(SimpleNamespace(config=config, device=torch.device("cpu"), inner=inner))
    trainer.model.load_state_dict(load_file(folder / "model.safetensors"))
    with torch.no_grad():
        named = trainer.model(trainer.images[:HELDOUT]).argmax(dim=1)
    return float((named == trainer.labels[:HELDOUT]).float().mean())


if __name__ == "__main__":
    print(f"{accuracy(Path(sys.argv[1])):.1%} of {HELDOUT} held-out digits")
