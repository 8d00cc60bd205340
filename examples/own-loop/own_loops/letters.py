"""A character model: a recurrent network over the bytes of the project's text, and plain SGD."""

import torch
from torch import nn
from torch.nn import functional

PIECE = 4
"""Sequences in one pass; gradients of the passes add up."""


class Letters(nn.Module):
    positions = None  # It may write texts of any length.
    tables = ("table.weight",)  # Merged like the embeddings of other models.

    def __init__(self, start):
        super().__init__()
        width = int(start.config.get("width", 64))
        self.table = nn.Embedding(257, width)  # 256 bytes, and the end of a document.
        self.memory = nn.GRU(width, width, batch_first=True)
        self.scores = nn.Linear(width, 257)
        self.to(start.device)
        self.optimizer = torch.optim.SGD(self.parameters(), momentum=start.inner.beta1)
        self.grad_norm_max = start.inner.grad_norm_max

    # What goes to the swarm, and what stays here.

    def tensors(self):
        return dict(self.named_parameters())

    def state(self):
        kept = {name: self.optimizer.state.get(one) for name, one in self.named_parameters()}
        return {name: {"first": one["momentum_buffer"]} for name, one in kept.items() if one}

    def load_state(self, state):
        tensors = self.tensors()
        for name, one in state.items():
            kept = {"momentum_buffer": one["first"]} if one["step"] else {}
            self.optimizer.state[tensors[name]] = kept

    # Training.

    def step(self, work):
        for group in self.optimizer.param_groups:
            group["lr"] = work.learning_rate
        self.optimizer.zero_grad()
        total, samples = 0.0, work.samples
        for first in range(0, len(samples), PIECE):
            if first:
                work.rest()  # A pause of this machine need not wait for the whole step.
            loss = self.losses_of(samples[first : first + PIECE]).sum() / len(samples)
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.parameters(), self.grad_norm_max)
        self.optimizer.step()
        return total

    def heldout_loss(self, samples, rest):
        return self.losses_of(samples).mean().item()

    def losses(self, samples, rest):
        return self.losses_of(samples).double().cpu().numpy()

    def losses_of(self, samples):
        ids = torch.from_numpy(samples).to(self.table.weight.device)
        hidden, _ = self.memory(self.table(ids[:, :-1]))
        scores = self.scores(hidden).transpose(1, 2)
        return functional.cross_entropy(scores, ids[:, 1:], reduction="none").mean(dim=1)

    # Samples of text on the screens.

    def write(self, ids, tokens, *, temperature, end):
        ids = list(ids)
        begun = len(ids)
        while len(ids) < begun + tokens and (len(ids) == begun or ids[-1] != end):
            at = torch.tensor([ids], device=self.table.weight.device)
            scores = self.scores(self.memory(self.table(at))[0][0, -1])
            ids.append(int(torch.multinomial((scores / temperature).softmax(-1), 1)))
        return ids[begun:]
