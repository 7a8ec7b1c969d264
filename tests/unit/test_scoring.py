import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from depthbench.data import tokenizer
from depthbench.evaluate import scoring
from depthbench.evaluate.requests import questions
from depthbench.evaluate.scoring import Encoded, cut, encode, score
from depthbench.model import ModelConfig, build_model
from depthbench.schema import TASK_FIELDS

EOS = 50279
T = 2048
# next-token probabilities of a model that looks at one token only
BIGRAM = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4]])


@pytest.fixture(scope="module")
def neox():
    return tokenizer.build(50280)


def toy():
    return SimpleNamespace(
        embed=SimpleNamespace(weight=BIGRAM),
        features=lambda tokens: F.one_hot(tokens, 4).float(),
        lm_head=lambda x: x @ BIGRAM.log(),
    )


def decoded(tokens, pair):
    return tokens.decode(pair.tokens[-pair.n_scored :].tolist(), skip_special_tokens=False)


def test_hand_computed_scores_of_a_toy_model():
    pairs = [
        Encoded(np.array([0, 1]), 1),  # 1/4
        Encoded(np.array([3, 0, 0, 2]), 2),  # 1/2 after 0, 1/8 after 0
        Encoded(np.array([2, 0]), 1),  # 7/10, the likeliest
        Encoded(np.array([0, 0]), 1),  # shares its input with the first
    ]
    found = score(toy(), pairs)
    expected = [math.log(4), math.log(2) + math.log(8), -math.log(0.7), math.log(2)]
    np.testing.assert_allclose(found.nll, expected, rtol=1e-6)
    assert found.greedy.tolist() == [False, False, True, True]


def test_a_token_across_the_join_never_empties_the_continuation(neox):
    """F01: `Ans` + `wer` is one token; the answer is then encoded by itself."""
    assert neox.encode("Answer").ids == [32869]
    pair = encode(neox, "Ans", "wer", T)
    assert (decoded(neox, pair), pair.fallback) == ("wer", True)
    assert pair.tokens.tolist() == neox.encode("Ans").ids + neox.encode("wer").ids


def test_the_blank_belongs_to_the_answer(neox):
    """F02: both spellings are the same ids."""
    either, other = encode(neox, "Question: q\nAnswer:", " yes", T), encode(neox, "Question: q\nAnswer: ", "yes", T)
    assert either.tokens.tolist() == other.tokens.tolist()
    assert either.n_scored == other.n_scored == 1
    assert decoded(neox, other) == " yes"
    assert not other.fallback


def test_an_empty_context_is_one_end_of_text(neox):
    for context, continuation in (("", "yes"), ("\n", "yes")):
        pair = encode(neox, context, continuation, T)
        assert pair.tokens[0] == EOS
        assert decoded(neox, pair) == context + continuation
    forged = encode(neox, "", "<|endoftext|>", T)
    assert (forged.tokens == EOS).sum() == 1  # text that looks like the token is text


def test_too_long_items_lose_context_first(neox):
    """F03: 2,100 tokens at T = 2,048; the input has 2,048, one more is predicted."""
    words = " the" * 2090
    pair = encode(neox, words, " cat sat on the mat, and the dog did not.", T)
    assert pair.truncated
    assert (len(pair.tokens), pair.n_scored) == (T + 1, 12)
    assert decoded(neox, pair) == " cat sat on the mat, and the dog did not."


@pytest.mark.parametrize(
    ("n_context", "n_answer", "tokens", "n_scored", "truncated"),
    [
        (3, 3, [0, 1, 2, 100, 101, 102], 3, False),  # an input of 5 of at most 5
        (4, 3, [1, 2, 3, 100, 101, 102], 3, True),
        (1, 5, [0, 100, 101, 102, 103, 104], 5, False),
        (4, 5, [3, 100, 101, 102, 103, 104], 5, True),
        (2, 9, [1, 100, 101, 102, 103, 104], 5, True),  # one token of context stays, the first T of the answer
    ],
)
def test_what_is_cut(n_context, n_answer, tokens, n_scored, truncated):
    pair = cut(list(range(n_context)), list(range(100, 100 + n_answer)), 5)
    assert (pair.tokens.tolist(), pair.n_scored, pair.truncated) == (tokens, n_scored, truncated)


def test_what_is_scored_is_always_the_answer(neox, task_spec):
    """All items of all tasks: the scored ids spell the answer and the blanks in front of it."""
    normal = neox.normalizer.normalize_str
    n_pairs = 0
    for task in (name for name in TASK_FIELDS if name != "gpqa"):
        for question in questions(task, task_spec(task)):
            blanks = question.context[len(question.context.rstrip()) :]
            for continuation in question.continuations:
                pair = encode(neox, question.context, continuation, 10**6)
                assert decoded(neox, pair) == normal(blanks + continuation), (task, question.item_id)
                n_pairs += 1
    assert n_pairs == 500 + 164 + 1000 + 1319 + 500 + 9501


def model(vocab_size=512):
    return build_model(
        ModelConfig(design="preln", d_model=16, n_layers=2, n_heads=2, vocab_size=vocab_size, init_std=0.3)
    ).eval()


def pairs_of(lengths, seed=0):
    draw = np.random.default_rng(seed)
    return [Encoded(draw.integers(0, 512, n), int(draw.integers(1, n))) for n in lengths]


def test_batches_give_what_one_at_a_time_gives(monkeypatch):
    found = pairs_of([2, 31, 5, 120, 64, 33, 3, 31])
    found.append(found[1]._replace(tokens=np.append(found[1].tokens[:-1], 7)))  # another last token, the same input
    alone = [score(model(), [pair]).nll[0] for pair in found]
    monkeypatch.setattr(scoring, "TOKENS_PER_BATCH", 100)
    monkeypatch.setattr(scoring, "TOKENS_PER_CHUNK", 7)
    np.testing.assert_allclose(score(model(), found).nll, alone, rtol=1e-5)
    literal = []
    for pair in found:
        logits = model()(torch.from_numpy(pair.tokens[None, :-1]))[0, -pair.n_scored :].double()
        targets = torch.from_numpy(pair.tokens[-pair.n_scored :])
        literal.append(F.cross_entropy(logits, targets, reduction="sum").item())
    np.testing.assert_allclose(alone, literal, rtol=1e-5)


def test_equal_inputs_run_once():
    net, seen = model(), []
    features = net.features
    net.features = lambda tokens: seen.append(tokens.shape) or features(tokens)
    score(net, [Encoded(np.array([1, 2, 3, last]), 1) for last in range(4)])
    assert seen == [(1, 3)]


@pytest.mark.perf
def test_batches_are_faster_than_one_at_a_time(task_spec):
    tokens, net = tokenizer.build(512), model()
    found = [
        encode(tokens, question.context, text, 256)
        for question in questions("arc_easy", task_spec("arc_easy", limit=100))
        for text in question.continuations
    ]

    def seconds(work):
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    ratios = [
        seconds(lambda: [score(net, [pair]) for pair in found]) / seconds(lambda: score(net, found)) for _ in range(5)
    ]
    assert np.median(ratios) > 1.5, ratios
