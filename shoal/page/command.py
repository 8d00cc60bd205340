"""The verb `page`: serves the page of a project until Ctrl-C, beside its syncer or by its link."""

from __future__ import annotations

import contextlib
from typing import Annotated

from host.files.home import DEFAULT_INSTANCE
from protocol.errors import UserError
from shoal.common import choices, settings_file
from shoal.page import beside


def page(
    at: Annotated[
        str | None,
        choices.option("Where: ADDRESS:PORT, or a port of this machine alone; page.at otherwise."),
    ] = None,
    *,
    link: Annotated[
        str | None,
        choices.option("A project's join link, where its syncer runs on another machine."),
    ] = None,
    instance: choices.Instance = DEFAULT_INSTANCE,
    home: choices.HomeHere,
) -> int:
    """The exit code. UserError where nothing says where to serve it, or the port is taken."""
    own = settings_file.load().values.page
    place = beside.page_at(at, own)
    if place is None:
        raise UserError("Say where to serve the page: shoal page 0.0.0.0:8080")
    url = beside.url_of(own)
    with contextlib.closing(beside.listen_at(place)) as listener:
        from shoal.page import process, server

        print(f"the project's page: {beside.address_of(listener, own)}", flush=True)
        outside = server.Outside(url, own.behind_proxy)
        return process.serve(listener, home, instance, outside, link)
