"""`shoal join --nearby`: what is found on this network, and the link of what is meant."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from host.join_link import format_link
from host.nearby import lan_sockets, searching
from protocol.errors import TransientError, UserError
from protocol.ids import short
from protocol.peers.nearby import NearbyProject, NearbySearch, Task
from protocol.peers.project_code import code_of, nearby_command, read_code

TASKS: Final[dict[Task, str]] = {
    "text": "a language model",
    "adapter": "an adapter of a language model",
    "hidden-tokens": "an encoder of text",
    "images": "a classifier of images",
    "own": "a model by training code of its own",
}

NOTHING: Final = (
    "Nothing was found on this network within three seconds. A learner answers only with "
    "network.nearby = true, a syncer unless that is false; a guest network or a firewall (UDP port "
    "4109) may keep the two machines apart. The join link works everywhere."
)


def chosen_link(code: str | None, *, listen_host: str) -> str | None:
    """The join link of the project that is meant; None where the person must choose first.

    Without a code, the one project found is meant once somebody at a terminal says so. Prints what
    was found. UserError for a code that is none, or that nobody here has; TransientError where
    nothing is found.
    """
    wanted = read_code(code) if code is not None else None
    look = asyncio.run(
        searching.search(
            None if wanted is None else lambda project: code_of(project) == wanted,
            only_loopback=lan_sockets.is_local(listen_host),
        )
    )
    found = list(look)
    if not found:
        raise TransientError(NOTHING)
    if wanted is None:
        return _asked_for(look)
    for one in found:
        if code_of(one.project) == wanted:
            print("\n".join(about(one)), flush=True)
            return _link_to(one)
    raise UserError(
        f"No project on this network has the code {wanted}. Found instead:\n{told(look)}"
    )


def told(look: NearbySearch) -> str:
    """What was found, a few lines for each project."""
    return "\n".join(line for one in look for line in about(one))


def about(one: NearbyProject) -> list[str]:
    """A project, with the code that both sides show."""
    notice = one.notice
    words = [f"{TASKS[notice.task]}, {notice.parameters:,} parameters"]
    if notice.learners is not None:
        words.append("1 learner" if notice.learners == 1 else f"{notice.learners} learners")
    lines = [f"{code_of(one.project)}  {one.name}: {', '.join(words)}"]
    tellers = [
        f"{host.notice.role} {short(host.key)}" + "".join(f" at {ip}" for ip, _ in host.places[:1])
        for host in one.hosts.values()
    ]
    lines.append(f"    told by {', '.join(tellers)}")
    if notice.admission != "open":
        lines.append(
            "    by invitation: unless its owner knows your key, ask for a link of your own"
        )
    return lines


def _asked_for(look: NearbySearch) -> str | None:
    found = list(look)
    print(told(look), flush=True)
    if len(found) == 1 and sys.stdin.isatty() and sys.stdout.isatty():
        print("Compare the four words with those on the host's screen.")
        answer = input("Join it? [y/N] ").strip().lower()
        return _link_to(found[0]) if answer in ("y", "yes") else None
    print(f"\nTo take part: {nearby_command(found[0].project)}")
    print("Compare the four words with those on the host's screen first.", flush=True)
    return None


def _link_to(one: NearbyProject) -> str:
    link = searching.link_to(one)
    if link is None:
        raise TransientError(
            f"{one.name} was found, but none of its hosts can be dialled from here. Ask its host "
            "for a join link."
        )
    return format_link(link)
