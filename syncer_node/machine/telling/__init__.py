"""What learners are told of the log: records, whole or in brief, what they missed, and receipts.
Not here: what a leader tells other voters (`raft`), and what records say (`protocol.log`).
"""
