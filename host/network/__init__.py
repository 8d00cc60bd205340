"""The seam to hivemind: engine, streams, DHT records, rate limits, join links.
No foreign exception or type leaves this folder.
"""
