import time

import pytest

from depthbench.data import corpus, items
from depthbench.data.decontaminate import Index, shingles

WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


@pytest.fixture
def index():
    return Index(
        {
            "gsm8k": [
                {"item_id": "0", "question": WORDS, "answer": "fifteen"},
                {"item_id": "1", "question": "too short", "answer": "by far"},
            ],
            "arc_easy": [{"item_id": "a", "question": WORDS, "choices": ["no", "sixteen"], "gold": 1}],
        }
    )


def test_shingles_are_thirteen_words_in_a_row():
    assert len(list(shingles(WORDS))) == 2
    assert list(shingles("A-b, C_d! " * 6 + "end")) == [("a", "b", "c_d") * 4 + ("a",)] + [
        (*(("a", "b", "c_d") * 6)[i : i + 13],) for i in range(1, 6)
    ] + [(*(("a", "b", "c_d") * 6)[6:], "end")]
    assert not list(shingles(" ".join(WORDS.split()[:12])))


def test_thirteen_shared_words_hit_and_twelve_do_not(index):
    both = {("gsm8k", "0"), ("arc_easy", "a")}
    assert index.hits(f"before. {WORDS.upper().replace(' ', ' - ')}! after") == both
    assert index.hits(" ".join(WORDS.split()[:13])) == both
    assert index.hits(" ".join(WORDS.split()[:12]) + " other") == set()


def test_a_piece_may_reach_into_the_gold(index):
    tail = " ".join(WORDS.split()[2:])
    assert index.hits(f"{tail} fifteen") == {("gsm8k", "0")}
    assert index.hits(f"{tail} sixteen") == {("arc_easy", "a")}


def test_table_counts_items_and_documents(index):
    assert [index.tally(text) for text in (WORDS, WORDS + " fifteen", "nothing")] == [True, True, False]
    assert index.rows("count") == [
        {
            "task": "gsm8k",
            "n_items": 2,
            "n_items_short": 1,
            "n_items_hit": 1,
            "n_docs_hit": 2,
            "action": "count",
        },
        {
            "task": "arc_easy",
            "n_items": 1,
            "n_items_short": 0,
            "n_items_hit": 1,
            "n_docs_hit": 2,
            "action": "count",
        },
    ]


@pytest.mark.perf
def test_ten_thousand_documents_take_a_few_seconds():
    index = Index({task: items.raw_items(task) for task in items.TASKS})
    texts = [d.text for d in corpus.documents({"source": "wheels", "origins": ["wiki_leads"]})]
    start = time.perf_counter()
    for text in texts:
        index.tally(text)
    assert time.perf_counter() - start < 5
