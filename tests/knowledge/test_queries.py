"""Cleaning of pasted text, and the ways a question may be said."""

from __future__ import annotations

from skillserver import tables
from skillserver.knowledge import library, queries
from skillserver.knowledge.library import Library

LINE = (
    "[2026-01-05 10:11:12,345] node17:4123:4567 [3] NCCL WARN NET/IB : Got completion from peer 10.0.3.7:51234<42> with status=12 vendor err 129 "
    "at 0x7f3a5c001234 (pid 572)"
)


def ways(text: str, shelf: Library) -> dict[str, set[tuple[str, ...]]]:
    asked, _ = queries.concepts(text, shelf)
    return {concept.surface: {way.terms for way in concept.ways} for concept in asked}


def test_a_pasted_line_loses_what_no_page_can_hold_and_keeps_its_codes() -> None:
    question = queries.clean(LINE)
    for kept in ("NCCL WARN", "NET/IB", "status=12", "vendor err 129"):
        assert kept in question.text
    for gone in ("2026", "10:11", "10.0.3.7", "0x7f3a", "572"):
        assert gone not in question.text
    assert question.notes == ["left out of the question: time stamps, host names, process ids, addresses"]


def test_syslog_and_nccl_prefixes_are_left_out_with_their_hosts() -> None:
    text = "Jan  5 10:11:12 gpu-node-7 kernel: [12345.678901] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus\n" * 2
    assert "gpu-node-7" not in queries.clean(text).text
    assert "fallen off the bus" in queries.clean(text).text
    assert "host names" in queries.clean("gpu-node-7:4123:4567 [3] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> and more").notes[0]


def test_a_short_question_is_left_as_it_is() -> None:
    assert queries.clean("what is 10:30 in a job limit, pid=1").notes == []


def test_a_long_paste_is_cut_to_its_telling_lines_and_says_so() -> None:
    noise = "".join(f"step {number} loss 2.0 all fine here\n" for number in range(3000))
    question = queries.clean(f"{noise}RuntimeError: NCCL communicator was aborted on rank 3\n{noise}")
    assert len(question.text) <= queries.LONGEST
    assert question.text.startswith("RuntimeError: NCCL communicator was aborted")
    assert "was cut to" in question.notes[-1]


def test_no_paste_makes_a_pattern_backtrack_for_ever() -> None:
    for piece in ("/a", "a-", "0a", "1", " ", "\n ", "[", "a:1", "1.1.1.", "/aaaa.", "12:12:", "显存", "é", "pid="):
        assert len(queries.clean(piece * (queries.READ_AT_MOST // len(piece))).text) <= queries.LONGEST


def test_chinese_becomes_english_longest_match_first(shelf: Library) -> None:
    found = ways("显存不足怎么办", shelf)
    assert list(found) == ["显存不足"]
    assert ("oom",) in found["显存不足"]
    assert ("out", "memori") in found["显存不足"]


def test_an_abbreviation_is_searched_by_its_long_form_too(shelf: Library) -> None:
    assert ("out", "memori") in ways("OOM", shelf)["OOM"]
    assert ("oom",) in ways("out of memory", shelf)["memory"]


def test_neighbours_are_joined_where_a_page_writes_them_as_one(shelf: Library) -> None:
    assert ("checkpoint",) in ways("check point", shelf)["check"]
    assert all(len(found) == 1 for found in ways("purple cow", shelf).values())


def test_a_typo_is_offered_and_a_known_word_is_not_touched(shelf: Library) -> None:
    assert queries.concepts("gradeint cliping", shelf)[1] == ["gradient (for gradeint)", "clipping (for cliping)"]
    assert queries.concepts("gradient clipping", shelf)[1] == []
    assert queries.concepts("react bread", shelf)[1] == []


def test_every_row_of_the_glossary_says_something_once() -> None:
    rows = tables.load("glossary.toml", queries.Gloss)
    spelled = [zh for row in rows for zh in row.zh]
    assert len(spelled) == len(set(spelled)) >= 150
    assert all(bool(row.zh) == bool(row.en) for row in rows)
    assert all(len(row.same) > 1 for row in rows if not row.zh and not row.skip)
    assert not set(spelled) & {word for row in rows for word in row.skip}


def test_the_address_between_xid_and_its_number_is_left_out() -> None:
    assert queries.clean("NVRM: Xid (PCI:0000:9b:00): 63, pid=12").text.startswith("NVRM: Xid 63")


def test_traditional_characters_find_what_simplified_ones_do(shelf: Library) -> None:
    assert ways("顯存不足怎麼辦", shelf) == ways("显存不足怎么办", shelf)
    assert ("gpu", "memori") in ways("顯示記憶體", shelf)["显示记忆体"]


def test_a_character_that_only_asks_may_be_part_of_a_word(shelf: Library) -> None:
    class Heard(type(shelf)):  # type: ignore[misc]
        """Some heading holds 下水 and 水道."""

        def frequency(self, term: str) -> int:
            return int(term in ("下水", "水道"))

    heard = Heard(shelf.pages, shelf.index, shelf.folders)
    asked, _ = queries.concepts("的下水道哪里堵塞了", heard)
    assert {concept.surface: concept.worth for concept in asked} == {"下水道": queries.HEARD, "堵塞": queries.FOREIGN}
    assert queries.concepts("是什么", heard) == ([], [])


def test_no_chinese_title_of_ours_is_emptied_by_words_that_ask() -> None:
    ours = library.current()
    titles = [section.title_zh for section in ours.sections.values() if section.searched and section.title_zh]
    assert len(titles) > 500
    assert [title for title in titles if not queries.concepts(title, ours)[0]] == []
