"""Who is there: sessions, hosts known from before, reachability, a partitioned swarm.
Not here: dialling anybody (`host.nat`, `host.network`).
"""
