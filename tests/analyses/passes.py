"""Batches of small documents, and a pass whose states are given."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch

from depthbench.analyses._baseline import Batch


def batch(tokens, first=0):
    """A batch whose documents have keys in order."""
    keys = tuple(f"{first + i:03}" for i in range(len(tokens)))
    return Batch(tokens, keys, tuple("ab"[i % 2] for i in range(len(tokens))))


def documents(n=6, n_tokens=7, vocab_size=23):
    return torch.randint(vocab_size, (n, n_tokens), generator=torch.Generator().manual_seed(0))


def given(states, n_documents=1):
    """A pass with known depth states, a list of (B, C, D)."""
    tokens = torch.zeros(states[0].shape[:2], dtype=torch.int64)
    return SimpleNamespace(depth_states=states, states=states, batch=batch(tokens), forward=nullcontext)
