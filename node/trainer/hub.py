"""Files of a repository of the Hugging Face hub: fetched, or told within seconds why not.

The hub's library tries again for most of a minute, with a warning each time, before it says that
nobody answers. So this asks first whether anybody would.
"""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from protocol.errors import UserError

ANSWER_S = 2.0
"""A connection takes well below a second wherever files could be fetched in reasonable time."""


def snapshot(name: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """The folder with these files, from the hub, or from this machine's cache while it is away.

    UserError with the reason, as a part of a sentence, if they are neither here nor there.
    """
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    away = "" if constants.HF_HUB_OFFLINE else trouble(constants.ENDPOINT)
    try:
        return Path(
            huggingface_hub.snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(patterns),
                local_files_only=bool(away),
            )
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        words = " ".join(str(error).split())[:300]
        raise UserError(f"{away}, and it is not in this machine's cache" if away else words) from (
            error
        )


def trouble(endpoint: str) -> str:
    """Why this address of HTTP cannot be reached, or empty; within about `ANSWER_S`."""
    host, port = _place(endpoint)
    said: list[str] = []
    # In a thread: names may take a resolver any time, and there is no limit to set for that.
    asking = threading.Thread(target=lambda: said.append(_connected(host, port)), daemon=True)
    asking.start()
    asking.join(ANSWER_S + 0.5)
    why = said[0] if said else f"no answer within {ANSWER_S:g} s"
    return f"{host} cannot be reached from here: {why}" if why else ""


def _place(endpoint: str) -> tuple[str, int]:
    """Where a connection goes: to the host, or to the proxy that the environment names."""
    wanted = urlsplit(endpoint)
    scheme, host = wanted.scheme or "https", wanted.hostname or ""
    proxy = urllib.request.getproxies().get(scheme, "")
    if proxy and not urllib.request.proxy_bypass(host):
        wanted = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    usual = {"https": 443, "http": 80}.get(wanted.scheme, 1080)
    return wanted.hostname or host, wanted.port or usual


def _connected(host: str, port: int) -> str:
    """Why no connection could be made; empty if one could."""
    try:
        socket.create_connection((host, port), timeout=ANSWER_S).close()
    except TimeoutError:
        return f"no answer within {ANSWER_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return ""
