"""What must hold in every simulated run, judged from the outside.
Not here: who is judged (`simulator.hosts`), and when (`simulator.scenarios`, `simulator.council`).
"""
