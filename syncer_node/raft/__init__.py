"""How the voters agree: one log, one leader a term, and a certificate for every record.
Not here: what the records mean (`protocol.log`) and how they are stored (`syncer_node.storage`).
"""
