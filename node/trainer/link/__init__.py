"""What a trainer and its daemon say to each other, how it is framed, and the memory they share.
Not here: who acts on it (`node.trainer.session`, `node.trainer_client`).
"""
