"""The local face of a daemon: control socket and its client, events, metrics, health over HTTP.
Not here: what a status says; each daemon fills in its own.
"""
