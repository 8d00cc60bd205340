#!/bin/sh
# Makes a project once, tells the learners its link, and serves it.
# INVITE: directory that the learners see; ADDRESS: where they find this host.
set -eu
invite=${INVITE:-/invite}
cd "$SHOAL_HOME"
[ -f try-out.toml ] || shoal project create try-out.toml --name try-out
[ -f try-out.shoal ] || shoal project sign try-out.toml
rm -f "$invite/link"
(shoal project invite --wait 5m > "$invite/.link" && mv "$invite/.link" "$invite/link") &
exec shoal syncer run try-out.shoal --host-address "${ADDRESS:-/dns4/$(hostname)/tcp/4100}" "$@"
