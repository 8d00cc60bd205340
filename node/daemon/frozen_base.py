"""The frozen base of an adapter, before a learner joins: from this machine if it lies
here, else from peers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from pathlib import Path

from host.files.held_base import HeldBase
from host.options import NodeOptions
from host.runtime.python_path import python_path
from host.transport import Transport
from node.download.held import HeldDownload, OnAttempt
from node.download.locator import Locator
from node.governor.disk_usage import tree_bytes
from protocol.errors import UserError
from protocol.project import Genesis, hub_source

log = logging.getLogger("shoal.node")


async def have_base(
    options: NodeOptions,
    transport: Transport,
    genesis: Genesis,
    encoded: bytes,
    on_attempt: OnAttempt,
) -> None:
    """The frozen base is here whole when it returns; at once, if the project has none.

    encoded: the genesis' bytes. UserError if a folder that the owner named has another model, or
    the disk has no room for it or may not have.
    """
    held = HeldBase(options.home.data_cache(), genesis)
    missing = await asyncio.to_thread(held.missing)
    if not missing:
        return
    _require_room(options, held)
    if options.base is not None:
        await _hold(options, encoded, Path(options.base))
        return
    copy = await asyncio.to_thread(_in_hub_cache, held.source)
    if copy is not None:
        try:
            await _hold(options, encoded, copy)
            return
        except UserError as error:
            log.info("the copy of %s in this machine's hub cache is of no use: %s", copy, error)
    locator = Locator.of(transport, options.link, encoded)
    log.info(
        "fetching the frozen base model %s from other hosts: %d MB",
        held.source,
        sum(one.bytes for one in missing) // 10**6,
    )
    await HeldDownload.of(transport, options.link, locator, held, on_attempt).run()


def _require_room(options: NodeOptions, held: HeldBase) -> None:
    """UserError if the base does not fit on the disk, or into what its owner gives."""
    wanted = held.wanted_bytes()
    ceiling = options.settings().limits.disk_bytes_max
    used = tree_bytes(options.home.kept_by_learners())
    if ceiling is not None and used + wanted > ceiling:
        raise UserError(
            f"The frozen base model of this project takes {wanted:,} bytes of the disk, and"
            f" limits.disk_bytes_max leaves {max(0, ceiling - used):,}. Raise it with: shoal config"
            " limits.disk_bytes_max=..."
        )
    free = shutil.disk_usage(held.path.parent).free
    if wanted > free:
        raise UserError(
            f"The frozen base model of this project takes {wanted:,} bytes in {held.path.parent},"
            f" and {free:,} are free. Free some disk space, or name another home with --home."
        )


def _in_hub_cache(source: str) -> Path | None:
    """Where this machine has a model of the hub already; the network is not asked."""
    named = hub_source(source)
    if named is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(named[0], "config.json", revision=named[1])
    return Path(found).parent if isinstance(found, str) else None


async def _hold(options: NodeOptions, encoded: bytes, folder: Path) -> None:
    """Takes the base from a folder, in a process of its own: this one never loads torch."""
    cache = options.home.data_cache()
    genesis = options.home.project(options.link.project) / "genesis"
    if not genesis.is_file():
        genesis.write_bytes(encoded)
    log.info("reading the frozen base model from %s", folder)
    command = [sys.executable, "-P", "-m", "node.trainer.tools.hold", str(genesis), str(cache)]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--from",
        str(folder),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path()},
    )
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        words = said.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise UserError(f"The base model cannot be taken from {folder}: {words[-1]}")
