"""What must hold in every simulated run, judged from the outside.
Not here: checks among voters alone (`simulator.council`).
"""
