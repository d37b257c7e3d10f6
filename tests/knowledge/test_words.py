"""The table of spellings, word for word: what a text is found by."""

from __future__ import annotations

import pytest

from skillserver.knowledge import index, words

TABLE = [
    ("NCCL_IB_GID_INDEX", "ncclibgidindex nccl ib gid index"),
    ("--cpus-per-task", "cpuspertask cpu per task"),
    ("torch.cuda.memory_summary()", "torchcudamemorysummary torch cuda memory summary"),
    ("all-reduce", "allreduce all reduce"),
    ("all_reduce", "allreduce all reduce"),
    ("AllReduce", "allreduce all reduce"),
    ("allreduce", "allreduce"),
    ("8xH100 80GB", "8xh100 8 h100 80gb 80 gb"),
    ("900GBps", "900gbps 900 gbps"),
    ("GB/s", "gbs gb s"),
    ("ZeRO-3", "zero3 zero 3"),
    ("PCIe", "pcie"),
    ("NVLink", "nvlink"),
    ("PyTorch", "pytorch"),
    ("bf16", "bf16"),
    ("MI300X", "mi300x"),
    ("显存不足", "显存 存不 不足"),
    ("显", "显"),
    ("GPUs and H100s", "gpu h100"),
    ("of the", ""),
    ("", ""),
    ("!?…", ""),
]


@pytest.mark.parametrize(("text", "expected"), TABLE)
def test_a_text_is_found_by_its_joined_form_and_its_pieces(text: str, expected: str) -> None:
    assert " ".join(term.text for term in words.terms(text)) == expected


def test_a_joined_form_stands_where_its_first_piece_stands() -> None:
    found = [(term.text, term.position, term.start, term.end, term.joined) for term in words.terms("on all-reduce")]
    assert found == [("allreduce", 1, 3, 13, True), ("all", 1, 3, 13, False), ("reduce", 2, 3, 13, False)]


def test_stems_are_those_of_porter2_and_words_with_digits_keep_theirs() -> None:
    found = [term.text for term in words.terms("running mappings debugging bf16s", index.stem)]
    assert found == ["run", "map", "debug", "bf16"]


def test_words_of_a_question_keep_their_spelling_and_lose_stop_words() -> None:
    found = [(word.surface, word.joined, word.pieces) for word in words.words("What is NCCL_IB_HCA 显存不足")]
    assert found == [("NCCL_IB_HCA", "ncclibhca", ("nccl", "ib", "hca")), ("显存不足", "", ("显存", "存不", "不足"))]


def test_nearest_finds_swapped_dropped_and_doubled_letters_only() -> None:
    known = ["gradient", "checkpoint", "gradual", "radiant"]
    assert words.nearest("gradeint", known) == ["gradient"]
    assert words.nearest("checkpoin", known) == ["checkpoint"]
    assert words.nearest("gradientt", known) == ["gradient"]
    assert words.nearest("zzz", known) == []
