"""The child process that owns torch and the accelerator: model, inner loop, session.
Not here: the daemon's side of it (`node.trainer_client`), and anything of the network.
"""

import logging

# It warns of every optional kernel that it lacks, also where `peft` only looks whether it is there.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
