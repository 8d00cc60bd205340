"""A small convolutional classifier of handwritten digits, with data of its own.

The data are scikit-learn's 1,797 images of 8 x 8 pixels. The first 297 are held out.
"""

import hashlib

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

HELDOUT = 297


class Digits:
    def __init__(self, start):
        width = int(start.config.get("width", 16))
        self.device = start.device
        self.model = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 10),
        ).to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), weight_decay=start.inner.weight_decay
        )
        found = load_digits()
        self.images = torch.tensor(found.images[:, None] / 16.0, dtype=torch.float32)
        self.labels = torch.tensor(found.target)

    # What goes to the swarm, and what stays here.

    def tensors(self):
        return dict(self.model.named_parameters())

    def state(self):
        kept = {name: self.optimizer.state.get(one) for name, one in self.tensors().items()}
        return {
            name: {"first": one["exp_avg"], "second": one["exp_avg_sq"], "step": one["step"]}
            for name, one in kept.items()
            if one
        }

    def load_state(self, state):
        tensors = self.tensors()
        for name, one in state.items():
            kept = {"exp_avg": one["first"], "exp_avg_sq": one["second"], "step": one["step"]}
            self.optimizer.state[tensors[name]] = kept

    # Training.

    def step(self, work):
        for group in self.optimizer.param_groups:
            group["lr"] = work.learning_rate
        self.optimizer.zero_grad()
        loss = self.loss(HELDOUT + work.samples)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def heldout_loss(self, samples, rest):
        return self.loss(samples).item()

    def loss(self, numbers):
        scores = self.model(self.images[numbers].to(self.device))
        return functional.cross_entropy(scores, self.labels[numbers].to(self.device))

    # Data: how many samples to train on and held out, and a digest of them.

    def data(self):
        content = self.images.numpy().tobytes() + self.labels.numpy().tobytes()
        return len(self.images) - HELDOUT, HELDOUT, hashlib.sha256(content).digest()
