"""When and how much this machine may train: its owner's limits, sensors, and the decision.
Not here: pausing or starting a trainer (`node.trainer_client`).
"""
