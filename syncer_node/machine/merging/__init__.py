"""Who merges which fragment: the leader's orders to mergers, and what a merger makes of them.

Not here: whom a round asks and when it closes (`rounds`), and arithmetic (`storage.merge_bank`).
"""
