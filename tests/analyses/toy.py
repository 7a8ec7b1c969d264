"""A model of known updates with the interface that analyses use, and batches of chosen documents."""

from types import SimpleNamespace

import torch

from depthbench.analyses._baseline import Batch


class Toy:
    """h <- h + update(h) behind each block; h is the embedding of the token, (B, T, d)."""

    def __init__(self, embedding, updates, head=None):
        self.embedding = torch.tensor(embedding)  # (V, d)
        self.updates = updates
        self.cfg = SimpleNamespace(n_layers=len(updates), vocab_size=len(embedding))
        self.residual = SimpleNamespace(skip_modes=("mask",), finish=lambda state, position, model: state)
        head = torch.zeros(len(embedding), self.embedding.shape[1]) if head is None else torch.tensor(head)
        self.lm_head = lambda x: x @ head.T

    def start(self, tokens):
        return self.embedding[tokens]

    def apply_block(self, position, state, params_of=None):
        return state + self.updates[position if params_of is None else params_of](state)

    def skip_block(self, position, state, mode="mask"):
        return state

    def represent(self, position, state):
        return state


def batch(rows, first=0):
    """Documents of the given tokens, their keys in order."""
    keys = tuple(f"{first + i:04}" for i in range(len(rows)))
    return Batch(torch.as_tensor(rows), keys, tuple("ab"[(first + i) % 2] for i in range(len(rows))))


def drawn(n_documents, n_tokens=7, vocab_size=23, seed=0):
    """Documents of random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return batch(torch.randint(vocab_size, (n_documents, n_tokens), generator=generator))
