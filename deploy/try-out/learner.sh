#!/bin/sh
# Waits for the link and joins under the name that is given first; more words are options.
set -eu
name=$1
shift
until [ -s "${INVITE:-/invite}/link" ]; do sleep 1; done
exec shoal join "$(cat "${INVITE:-/invite}/link")" --name "$name" "$@"
