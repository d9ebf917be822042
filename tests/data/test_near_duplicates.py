"""Copies are found however they were changed, inside whatever they were put; what is no copy is not."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.planted_copies import CHANGES, PHRASES, edited, reviews
from headstart.data.near_duplicates import (
    _MAX_BUCKET,
    CONTAINMENT_THRESHOLD,
    JACCARD_THRESHOLD,
    NUM_PERM,
    SHINGLE_WORDS,
    TextIndex,
    WordHashes,
    _candidates,
    contaminated_documents,
    count_duplicates,
    estimate_jaccard,
    find_in_stream,
    hash_shingles,
    jaccard,
    near_duplicate_pairs,
    overlap,
    overlap_rows,
    shingles_of,
    signatures,
    split_words,
)

ROWS = reviews(120)
UNRELATED = reviews(1500, seed=99)


def copies(share: float, kind: str) -> list[str]:
    return [edited(text, share, kind) for text in ROWS]


def test_case_punctuation_and_white_space_do_not_count():
    both = shingles_of(["Un  très bon livre, vraiment: à lire!", "un TRÈS bon\nlivre vraiment; à lire"])
    assert both.of(0).tolist() == both.of(1).tolist()
    assert len(both.of(0)) == 7 - SHINGLE_WORDS + 1


def test_accents_are_the_same_in_both_spellings():
    assert split_words("e\u0301le\u0300ve") == split_words("élève") == ["élève"]


def test_a_text_shorter_than_a_run_is_one_run_and_an_empty_one_none():
    assert shingles_of(["très bon livre", "", "...", "bon livre"]).sizes.tolist() == [1, 0, 0, 1]


def test_a_run_does_not_reach_into_the_next_text():
    apart, together = shingles_of(["a b c d", "e f g h"]), shingles_of(["a b c d e f g h"])
    assert not np.intersect1d(apart.hashes, together.hashes).size


@settings(max_examples=60)
@given(
    members=st.lists(st.integers(0, 10**9), min_size=40, max_size=400, unique=True),
    cuts=st.tuples(*[st.floats(0, 1)] * 2),
)
def test_the_estimate_is_near_the_true_similarity(members, cuts):
    first, second = (int(cut * (len(members) - 1)) for cut in sorted(cuts))
    one, other = members[: second + 1], members[first:]
    texts = shingles_of([" ".join(f"w{member}" for member in part) for part in (one, other)])
    signed = signatures(texts)
    true = jaccard(texts.of(0), texts.of(1))
    # five standard errors of a share of 128 draws, and a little for shares near 0 and 1
    assert abs(estimate_jaccard(signed[0], signed[1]) - true) <= 5 * (true * (1 - true) / NUM_PERM) ** 0.5 + 0.03


def test_the_estimate_has_no_leaning():
    texts = shingles_of([text for row in ROWS[:100] for text in (row, edited(row, 0.06, "changed"))])
    signed = signatures(texts)
    errors = [
        estimate_jaccard(signed[i], signed[i + 1]) - jaccard(texts.of(i), texts.of(i + 1)) for i in range(0, len(texts), 2)
    ]
    assert abs(np.mean(errors)) < 4 * np.std(errors) / len(errors) ** 0.5 + 1e-3
    assert np.std(errors) < 0.05  # 0.044 is what 128 independent draws would give at one half


@settings(max_examples=40)
@given(texts=st.lists(st.text(alphabet="ab é本.\n", max_size=40), max_size=12), seed=st.integers(0, 99))
def test_signatures_do_not_depend_on_what_else_there_is_or_on_its_order(texts, seed):
    order = list(range(len(texts)))
    random.Random(seed).shuffle(order)
    signed, shuffled = signatures(shingles_of(texts)), signatures(shingles_of([texts[i] for i in order]))
    assert np.array_equal(signed[order], shuffled) if texts else len(shuffled) == 0
    for row, text in enumerate(texts):
        assert np.array_equal(signatures(shingles_of([text]))[0], signed[row])


@settings(max_examples=15)
@given(st.permutations(range(30)))
def test_near_doubles_do_not_depend_on_the_order_of_rows(order):
    rows, others = ROWS[:30], copies(0.05, "changed")[15:45]
    found = near_duplicate_pairs(shingles_of(rows), shingles_of(others))
    mixed = near_duplicate_pairs(shingles_of([rows[i] for i in order]), shingles_of(others))
    assert {order[row]: there for row, there in mixed.items()} == found


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize(("share", "recall"), [(0.0, 1.0), (0.02, 1.0), (0.05, 1.0), (0.1, 0.99), (0.2, 0.2)])
def test_a_copy_with_few_words_changed_is_found_by_minhash(share, kind, recall):
    found = near_duplicate_pairs(shingles_of(copies(share, kind)), shingles_of(ROWS))
    right = sum(found.get(row, (-1, 0.0))[0] == row for row in range(len(ROWS)))
    assert right >= recall * len(ROWS)


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize(("share", "recall"), [(0.0, 1.0), (0.02, 1.0), (0.05, 1.0), (0.1, 0.99), (0.2, 0.3)])
def test_a_copy_inside_a_longer_text_is_found(share, kind, recall):
    novels = [
        "\n".join([*UNRELATED[3 * i : 3 * i + 6], copy, *UNRELATED[i : i + 6]])
        for i, copy in enumerate(copies(share, kind))
    ]
    found = find_in_stream(TextIndex(ROWS), enumerate(novels))
    assert found.exact == {}
    right = sum(found.near.get(row) == row for row in range(len(ROWS)))
    assert right >= recall * len(ROWS)


def test_minhash_alone_does_not_see_a_copy_inside_a_longer_text():
    """The control of the test above: why there are two ways."""
    novels = ["\n".join([*UNRELATED[:15], row, *UNRELATED[15:30]]) for row in ROWS[:20]]
    assert near_duplicate_pairs(shingles_of(ROWS[:20]), shingles_of(novels)) == {}


def test_a_text_in_a_very_long_document_is_found_wherever_it_stands():
    filler = "\n".join(UNRELATED[:700])
    assert len(filler) > 400_000  # several pieces
    for place in range(0, 200_000, 23_000):
        cut = filler.index(" ", place)
        assert find_in_stream(TextIndex(ROWS[:1]), [("novel", f"{filler[:cut]} {ROWS[0]} {filler[cut:]}")]).near == {
            0: "novel"
        }
    assert find_in_stream(TextIndex(ROWS[:1]), [("novel", filler)]).near == {}  # control


def test_a_changed_copy_across_the_border_of_two_pieces_is_found():
    filler = "\n".join(UNRELATED[:700])
    copies_found = 0
    for row, text in enumerate(ROWS[:20]):
        copy = edited(text, 0.12, "changed")
        novel = f"{filler[: 200_000 - len(copy) // 2]} {copy} {filler[200_000:]}"
        copies_found += find_in_stream(TextIndex(ROWS[:20]), [("novel", novel)]).near == {row: "novel"}
    assert copies_found >= 19


def test_a_text_in_two_documents_is_in_neither():
    parts = ROWS[0].split()[:16]
    row, halves = " ".join(parts), [" ".join(parts[:10]), " ".join(parts[10:])]
    assert find_in_stream(TextIndex([row]), enumerate(halves)).near == {}
    assert find_in_stream(TextIndex([row]), enumerate([" ".join(halves)])).exact == {0: 0}  # control


def test_few_pairs_of_other_texts_are_compared_in_full():
    compared = _candidates(shingles_of(ROWS), shingles_of(UNRELATED))
    assert len(compared) < 0.002 * len(ROWS) * len(UNRELATED)


def test_texts_that_have_nothing_to_do_with_each_other_are_not_doubles():
    found = overlap(TextIndex(ROWS), TextIndex(UNRELATED))
    assert (found.exact, found.near) == ({}, {})
    assert find_in_stream(TextIndex(ROWS), [("all", "\n".join(UNRELATED))]).near == {}


def test_a_turn_of_phrase_is_no_double():
    rows = [f"{phrase} really" for phrase in PHRASES]
    others = [f"{phrase} {tail}" for phrase in PHRASES for tail in ("truly", "and more")]
    assert overlap(TextIndex(rows), TextIndex(others)).near == {}
    assert overlap(TextIndex(rows), TextIndex([row.upper() for row in rows])).near == {
        0: 0,
        1: 1,
        2: 2,
    }  # all is shared


def test_a_row_is_exact_or_near_and_knows_its_place():
    others = [*UNRELATED[:5], f" {ROWS[0]}\n", edited(ROWS[1], 0.05, "changed"), f"{UNRELATED[6]} {ROWS[2]}"]
    found = overlap(TextIndex(ROWS[:4]), TextIndex(others))
    assert (found.exact, found.near) == ({0: 5}, {1: 6, 2: 7})
    assert overlap_rows(ROWS[:4], [others[:6], others[6:]]) == {"exact": [0], "near": [1, 2]}
    assert overlap_rows(ROWS[:4], [UNRELATED[:5]]) == {"exact": [], "near": []}


def test_an_exact_double_in_one_file_and_a_near_one_in_another_is_exact():
    assert overlap_rows(ROWS[:1], [[edited(ROWS[0], 0.05, "deleted")], [ROWS[0]]]) == {"exact": [0], "near": []}


def test_documents_that_are_hold_or_are_a_piece_of_a_row_are_unwanted():
    piece = " ".join(ROWS[2].split()[:25])
    documents = [UNRELATED[0], ROWS[0], edited(ROWS[1], 0.05, "changed"), piece, f"{UNRELATED[1]}\n{ROWS[3]}"]
    assert contaminated_documents(documents, TextIndex(ROWS[:4])) == {1: "exact", 2: "near", 3: "near", 4: "near"}


def test_thousands_of_copies_of_one_text_cost_no_more_than_one():
    crowd = shingles_of([ROWS[0]] * 1000)
    assert len(near_duplicate_pairs(crowd, crowd)) == 1000  # a million pairs
    assert len(_candidates(crowd, crowd)) == 1000 * _MAX_BUCKET


def test_a_run_that_every_text_has_is_not_looked_for():
    template = "dear sir i write to you about my order because it has not arrived yet and i want my money back now"
    rows = [f"{template} {text}" for text in reviews(1200, seed=5, shortest=10, longest=16)]
    assert find_in_stream(TextIndex(rows), [("template", template)]).near == {}
    assert find_in_stream(TextIndex(rows), [("one", f"{rows[7]} and so on")]).near == {
        7: "one"
    }  # by what it has for itself
    assert (
        len(find_in_stream(TextIndex(rows[:50]), [("template", template)]).near) == 50
    )  # control: in fewer rows it is a sign


@settings(max_examples=40)
@given(
    rows=st.lists(st.text(max_size=60), max_size=5),
    others=st.lists(st.lists(st.text(max_size=60), max_size=5), max_size=3),
)
def test_any_texts_can_be_compared(rows, others):
    rows, *others = ([text.encode("utf-8", "ignore").decode() for text in part] for part in (rows, *others))
    found = overlap_rows(rows, others)
    assert not set(found["exact"]) & set(found["near"])
    together = {" ".join(text.split()) for part in others for text in part}
    assert found["exact"] == [row for row, text in enumerate(rows) if " ".join(text.split()) in together]


def test_thresholds_of_the_two_ways_are_the_same_for_texts_of_one_length():
    assert pytest.approx(CONTAINMENT_THRESHOLD / (2 - CONTAINMENT_THRESHOLD)) == JACCARD_THRESHOLD


def test_hashes_of_runs_are_the_same_everywhere():
    found = hash_shingles(WordHashes().add("un roman inoubliable drôle et tendre"))
    assert [int(one) for one in found] == [17333543840359641853, 10551638842291681227]


@pytest.mark.parametrize(("digests", "expected"), [([], (0, 0, 0)), ([1, 2], (0, 0, 0)), ([1, 1, 1, 2, 2], (3, 2, 5))])
def test_doubles_are_counted_as_rows_and_as_texts(digests, expected):
    assert count_duplicates(digests) == expected
