"""A model of known updates with the interface that analyses use, passes of known states, batches of documents."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch

from depthbench.analyses._baseline import Batch


class Toy:
    """h <- h + update(h) behind each block; h is the embedding of the token, (B, T, d)."""

    def __init__(self, embedding, updates, head=None):
        self.embedding = torch.tensor(embedding)  # (V, d)
        self.updates = updates
        self.cfg = SimpleNamespace(n_layers=len(updates), vocab_size=len(embedding))
        self.residual = SimpleNamespace(
            skip_modes=("mask",), start=lambda x0, model: x0, finish=lambda state, position, model: state
        )
        head = torch.zeros(len(embedding), self.embedding.shape[1]) if head is None else torch.tensor(head)
        self.lm_head = lambda x: x @ head.T

    def embed(self, tokens):
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


def documents(n=6, n_tokens=7, vocab_size=23):
    return torch.randint(vocab_size, (n, n_tokens), generator=torch.Generator().manual_seed(0))


def given(states, n_documents=1):
    """A pass with known depth states, a list of (B, C, D)."""
    tokens = torch.zeros(states[0].shape[:2], dtype=torch.int64)
    return SimpleNamespace(depth_states=states, states=states, batch=batch(tokens), forward=nullcontext)
