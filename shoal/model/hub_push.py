"""Publishing an exported folder as a repository of the Hugging Face hub.

The token is wherever `huggingface_hub` keeps one (`hf auth login`, HF_TOKEN): Shoal neither asks
for it nor stores it. Nothing is deleted there; a file of the same name gets a new version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from protocol.errors import TransientError, UserError
from protocol.project import hub_name

WEIGHTS: Final = (".safetensors", ".bin")


def check(name: str) -> None:
    """UserError before the work of an export if it could not be published: by its name, or because
    nobody is logged in."""
    if hub_name(name) != (name, ""):
        raise UserError(f"--push takes OWNER/NAME of a repository of the hub, not {name!r}.")
    from huggingface_hub import get_token

    if get_token() is None:
        raise UserError(
            "Nobody is logged in to the hub on this machine. Log in with `hf auth login`, or set "
            "HF_TOKEN, with a token that may write."
        )


def push(folder: Path, name: str, *, is_private: bool, summary: str) -> list[str]:
    """Uploads the folder, into a new repository if there is none; what to say, the URL last.

    is_private: of a new repository. summary: of the commit. UserError if the hub refuses,
    TransientError if it cannot be reached: the folder stays, and the message says how to go on.
    """
    from huggingface_hub import create_repo, list_repo_files, upload_folder
    from huggingface_hub.errors import HfHubHTTPError

    # Those of the HTTP client that the library is built on, which differs between its versions.
    lost: tuple[type[Exception], ...] = (*HfHubHTTPError.__bases__, OSError, ValueError)
    own = {one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()}
    again = f"The model is in {folder}; publish it with: hf upload {name} {folder}"
    try:
        create_repo(name, private=is_private or None, exist_ok=True)
        before = list_repo_files(name)
        done = upload_folder(repo_id=name, folder_path=folder, commit_message=summary)
    except HfHubHTTPError as error:
        words = " ".join(str(error).split())[:300]
        raise UserError(f"The hub refused {name} ({words}). {again}") from error
    except lost as error:
        words = " ".join(str(error).split())[:300] or type(error).__name__
        raise TransientError(f"{name} could not be published ({words}). {again}") from error
    others = sorted(set(before) - own)
    weights = [one for one in others if one.endswith(WEIGHTS)]
    lines = []
    if weights:
        lines.append(
            f"the repository also has {', '.join(weights)} from before, which some tools may load "
            "instead; delete there what you do not want"
        )
    return [*lines, f"published at {done.repo_url}"]
