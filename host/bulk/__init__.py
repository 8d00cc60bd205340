"""Bulk data between hosts: direct TLS channels, blobs offered and fetched, fair shares of a line.
Not here: what the blobs mean, and streams of the network engine (`host.network`).
"""
