"""Edited copies are recognised alone and inside longer texts, and unrelated texts are not."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.planted_copies import EDITS, PHRASES, edited, reviews
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


def copies(fraction: float, edit: str) -> list[str]:
    return [edited(text, fraction, edit) for text in ROWS]


def test_shingles_ignore_case_punctuation_and_white_space():
    both = shingles_of(["Un  très bon livre, vraiment: à lire!", "un TRÈS bon\nlivre vraiment; à lire"])
    assert both.of(0).tolist() == both.of(1).tolist()
    assert len(both.of(0)) == 7 - SHINGLE_WORDS + 1


def test_composed_and_decomposed_accents_give_the_same_words():
    assert split_words("e\u0301le\u0300ve") == split_words("élève") == ["élève"]


def test_a_text_shorter_than_a_shingle_is_one_shingle_and_an_empty_text_none():
    assert shingles_of(["très bon livre", "", "...", "bon livre"]).sizes.tolist() == [1, 0, 0, 1]


def test_a_shingle_does_not_span_two_texts():
    separate, joined = shingles_of(["a b c d", "e f g h"]), shingles_of(["a b c d e f g h"])
    assert not np.intersect1d(separate.hashes, joined.hashes).size


@settings(max_examples=60)
@given(
    members=st.lists(st.integers(0, 10**9), min_size=40, max_size=400, unique=True),
    cuts=st.tuples(*[st.floats(0, 1)] * 2),
)
def test_the_minhash_estimate_is_close_to_the_true_similarity(members, cuts):
    first, second = (int(cut * (len(members) - 1)) for cut in sorted(cuts))
    subsets = members[: second + 1], members[first:]
    texts = shingles_of([" ".join(f"w{member}" for member in subset) for subset in subsets])
    minima = signatures(texts)
    true = jaccard(texts.of(0), texts.of(1))
    # five standard errors of a fraction of 128 draws, and a margin for fractions near 0 and 1
    assert abs(estimate_jaccard(minima[0], minima[1]) - true) <= 5 * (true * (1 - true) / NUM_PERM) ** 0.5 + 0.03


def test_the_minhash_estimate_is_unbiased():
    texts = shingles_of([text for row in ROWS[:100] for text in (row, edited(row, 0.06, "changed"))])
    minima = signatures(texts)
    errors = [
        estimate_jaccard(minima[i], minima[i + 1]) - jaccard(texts.of(i), texts.of(i + 1))
        for i in range(0, len(texts), 2)
    ]
    assert abs(np.mean(errors)) < 4 * np.std(errors) / len(errors) ** 0.5 + 1e-3
    assert np.std(errors) < 0.05  # 0.044 is what 128 independent draws would give at one half


@settings(max_examples=40)
@given(texts=st.lists(st.text(alphabet="ab é本.\n", max_size=40), max_size=12), seed=st.integers(0, 99))
def test_signatures_do_not_depend_on_other_texts_or_their_order(texts, seed):
    order = list(range(len(texts)))
    random.Random(seed).shuffle(order)
    minima, shuffled = signatures(shingles_of(texts)), signatures(shingles_of([texts[i] for i in order]))
    assert np.array_equal(minima[order], shuffled) if texts else len(shuffled) == 0
    for row, text in enumerate(texts):
        assert np.array_equal(signatures(shingles_of([text]))[0], minima[row])


@settings(max_examples=15)
@given(st.permutations(range(30)))
def test_near_duplicates_do_not_depend_on_the_order_of_rows(order):
    rows, others = ROWS[:30], copies(0.05, "changed")[15:45]
    pairs = near_duplicate_pairs(shingles_of(rows), shingles_of(others))
    shuffled = near_duplicate_pairs(shingles_of([rows[i] for i in order]), shingles_of(others))
    assert {order[row]: match for row, match in shuffled.items()} == pairs


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(("fraction", "recall"), [(0.0, 1.0), (0.02, 1.0), (0.05, 1.0), (0.1, 0.99), (0.2, 0.2)])
def test_minhash_finds_a_copy_with_few_edits(fraction, edit, recall):
    pairs = near_duplicate_pairs(shingles_of(copies(fraction, edit)), shingles_of(ROWS))
    num_right = sum(pairs.get(row, (-1, 0.0))[0] == row for row in range(len(ROWS)))
    assert num_right >= recall * len(ROWS)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(("fraction", "recall"), [(0.0, 1.0), (0.02, 1.0), (0.05, 1.0), (0.1, 0.99), (0.2, 0.3)])
def test_an_edited_copy_inside_a_longer_text_is_a_near_duplicate(fraction, edit, recall):
    novels = [
        "\n".join([*UNRELATED[3 * i : 3 * i + 6], copy, *UNRELATED[i : i + 6]])
        for i, copy in enumerate(copies(fraction, edit))
    ]
    matches = find_in_stream(TextIndex(ROWS), enumerate(novels))
    assert matches.exact == {}
    num_right = sum(matches.near.get(row) == row for row in range(len(ROWS)))
    assert num_right >= recall * len(ROWS)


def test_minhash_alone_misses_a_copy_inside_a_longer_text():
    """The control of the test above: the reason for the containment index."""
    novels = ["\n".join([*UNRELATED[:15], row, *UNRELATED[15:30]]) for row in ROWS[:20]]
    assert near_duplicate_pairs(shingles_of(ROWS[:20]), shingles_of(novels)) == {}


def test_a_very_long_document_contains_a_text_at_any_position():
    filler = "\n".join(UNRELATED[:700])
    assert len(filler) > 400_000  # several pieces
    for position in range(0, 200_000, 23_000):
        cut = filler.index(" ", position)
        assert find_in_stream(TextIndex(ROWS[:1]), [("novel", f"{filler[:cut]} {ROWS[0]} {filler[cut:]}")]).near == {
            0: "novel"
        }
    assert find_in_stream(TextIndex(ROWS[:1]), [("novel", filler)]).near == {}  # control


def test_an_edited_copy_across_two_pieces_of_a_document_is_a_near_duplicate():
    filler = "\n".join(UNRELATED[:700])
    num_matched = 0
    for row, text in enumerate(ROWS[:20]):
        copy = edited(text, 0.12, "changed")
        novel = f"{filler[: 200_000 - len(copy) // 2]} {copy} {filler[200_000:]}"
        num_matched += find_in_stream(TextIndex(ROWS[:20]), [("novel", novel)]).near == {row: "novel"}
    assert num_matched >= 19


def test_a_text_split_over_two_documents_is_in_neither():
    words = ROWS[0].split()[:16]
    row, halves = " ".join(words), [" ".join(words[:10]), " ".join(words[10:])]
    assert find_in_stream(TextIndex([row]), enumerate(halves)).near == {}
    assert find_in_stream(TextIndex([row]), enumerate([" ".join(halves)])).exact == {0: 0}  # control


def test_few_pairs_of_unrelated_texts_are_compared_exactly():
    candidates = _candidates(shingles_of(ROWS), shingles_of(UNRELATED))
    assert len(candidates) < 0.002 * len(ROWS) * len(UNRELATED)


def test_unrelated_texts_are_no_duplicates():
    matches = overlap(TextIndex(ROWS), TextIndex(UNRELATED))
    assert (matches.exact, matches.near) == ({}, {})
    assert find_in_stream(TextIndex(ROWS), [("all", "\n".join(UNRELATED))]).near == {}


def test_a_common_phrase_is_no_duplicate():
    rows = [f"{phrase} really" for phrase in PHRASES]
    others = [f"{phrase} {tail}" for phrase in PHRASES for tail in ("truly", "and more")]
    assert overlap(TextIndex(rows), TextIndex(others)).near == {}
    assert overlap(TextIndex(rows), TextIndex([row.upper() for row in rows])).near == {
        0: 0,
        1: 1,
        2: 2,
    }  # all shingles are shared


def test_a_row_is_an_exact_or_a_near_duplicate_with_its_position():
    others = [*UNRELATED[:5], f" {ROWS[0]}\n", edited(ROWS[1], 0.05, "changed"), f"{UNRELATED[6]} {ROWS[2]}"]
    matches = overlap(TextIndex(ROWS[:4]), TextIndex(others))
    assert (matches.exact, matches.near) == ({0: 5}, {1: 6, 2: 7})
    assert overlap_rows(ROWS[:4], [others[:6], others[6:]]) == {"exact": [0], "near": [1, 2]}
    assert overlap_rows(ROWS[:4], [UNRELATED[:5]]) == {"exact": [], "near": []}


def test_an_exact_duplicate_in_one_file_and_a_near_one_in_another_is_exact():
    assert overlap_rows(ROWS[:1], [[edited(ROWS[0], 0.05, "deleted")], [ROWS[0]]]) == {"exact": [0], "near": []}


def test_documents_that_equal_contain_or_are_part_of_a_row_are_contaminated():
    piece = " ".join(ROWS[2].split()[:25])
    documents = [UNRELATED[0], ROWS[0], edited(ROWS[1], 0.05, "changed"), piece, f"{UNRELATED[1]}\n{ROWS[3]}"]
    assert contaminated_documents(documents, TextIndex(ROWS[:4])) == {1: "exact", 2: "near", 3: "near", 4: "near"}


def test_many_copies_of_one_text_give_a_bounded_number_of_candidates():
    duplicates = shingles_of([ROWS[0]] * 1000)
    assert len(near_duplicate_pairs(duplicates, duplicates)) == 1000  # a million pairs
    assert len(_candidates(duplicates, duplicates)) == 1000 * _MAX_BUCKET


def test_shingles_of_very_many_texts_are_ignored():
    template = "dear sir i write to you about my order because it has not arrived yet and i want my money back now"
    rows = [f"{template} {text}" for text in reviews(1200, seed=5, shortest=10, longest=16)]
    assert find_in_stream(TextIndex(rows), [("template", template)]).near == {}
    assert find_in_stream(TextIndex(rows), [("one", f"{rows[7]} and so on")]).near == {7: "one"}  # by its own shingles
    assert (
        len(find_in_stream(TextIndex(rows[:50]), [("template", template)]).near) == 50
    )  # control: shingles of fewer texts count


@settings(max_examples=40)
@given(
    rows=st.lists(st.text(max_size=60), max_size=5),
    others=st.lists(st.lists(st.text(max_size=60), max_size=5), max_size=3),
)
def test_any_texts_can_be_compared(rows, others):
    rows, *others = ([text.encode("utf-8", "ignore").decode() for text in texts] for texts in (rows, *others))
    matches = overlap_rows(rows, others)
    assert not set(matches["exact"]) & set(matches["near"])
    all_others = {" ".join(text.split()) for texts in others for text in texts}
    assert matches["exact"] == [row for row, text in enumerate(rows) if " ".join(text.split()) in all_others]


def test_both_thresholds_agree_for_texts_of_equal_length():
    assert pytest.approx(CONTAINMENT_THRESHOLD / (2 - CONTAINMENT_THRESHOLD)) == JACCARD_THRESHOLD


def test_shingle_hashes_never_change():
    hashes = hash_shingles(WordHashes().add("un roman inoubliable drôle et tendre"))
    assert hashes.tolist() == [17333543840359641853, 10551638842291681227]


@pytest.mark.parametrize(("digests", "expected"), [([], (0, 0, 0)), ([1, 2], (0, 0, 0)), ([1, 1, 1, 2, 2], (3, 2, 5))])
def test_duplicates_are_counted_as_rows_and_as_texts(digests, expected):
    assert count_duplicates(digests) == expected
