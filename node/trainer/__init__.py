"""The child process that owns torch and the accelerator: model, inner loop, session.
Not here: the daemon's side of it (`node.trainer_client`), and anything of the network.
"""
