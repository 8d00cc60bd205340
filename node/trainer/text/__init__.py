"""The training text: numbered blocks, tokenised once per host, read as leased.
Not here: who is leased which block (`protocol.log.leases`).
"""
