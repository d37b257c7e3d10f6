"""Reading by id."""

from __future__ import annotations

import re

import pytest

from skillserver.errors import BadRequest
from skillserver.knowledge import reading
from skillserver.knowledge.library import Library


def test_without_an_id_the_pages_are_listed(shelf: Library) -> None:
    told = reading.text_of(shelf, "")
    assert "- `debugging/hangs` When a run hangs: How to find the rank that holds up the others." in told
    assert len(re.findall(r"^- `", told, re.M)) == 6


def test_where_the_summaries_do_not_fit_the_titles_of_all_pages_are_listed(shelf: Library) -> None:
    told = reading.text_of(shelf, "", 110)
    assert "Titles only: " in told
    assert "- `debugging/hangs` When a run hangs\n" in told
    assert len(re.findall(r"^- `", told, re.M)) == 6


def test_a_section_comes_with_what_is_nested_under_it_and_its_sources(shelf: Library) -> None:
    assert reading.text_of(shelf, "debugging/hangs#stacks-with-py-spy") == (
        "## Stacks with py-spy [debugging/hangs#stacks-with-py-spy]\n"
        "_When a run hangs · handbook/debugging/hangs.md:19-23_\n\n"
        "`py-spy dump --pid N` prints the stack of a live process. Run it on each node by `srun`.\n\n"
        "### Native frames [debugging/hangs#native-frames]\n\n"
        "Add `--native` to see what runs below Python.\n\n"
        "Sources:\n"
        "- PyTorch distributed https://docs.pytorch.org/docs/stable/distributed.html\n"
        "- py-spy https://github.com/benfred/py-spy"
    )


def test_a_page_comes_whole_and_a_chapter_as_a_list(shelf: Library) -> None:
    assert reading.text_of(shelf, "training/memory").count("\n### ") == 4
    assert "  - `training/memory#zero-stages` ZeRO stages" in reading.text_of(shelf, "training")


@pytest.mark.parametrize(
    "id",
    ["debugging/hangs#nccl-watchdog-timeout", "knowledge:///debugging/hangs#nccl-watchdog-timeout", "debugging/hangs.md#NCCL watchdog timeout",
     "Debugging/Hangs#nccl-watchdog-timeout", "debugging/hangs#watchdog", "`debugging/hangs#nccl-watchdog-timeout`"],
)  # fmt: skip
def test_an_id_is_known_in_other_forms_and_by_its_old_name(shelf: Library, id: str) -> None:
    assert reading.resolved(shelf, id) == "debugging/hangs#nccl-watchdog-timeout"


def test_an_unknown_id_names_the_nearest(shelf: Library) -> None:
    with pytest.raises(BadRequest, match="unknown_section") as raised:
        reading.text_of(shelf, "training/memroy#zero-stages")
    assert raised.value.valid[0] == "training/memory#zero-stages"
    with pytest.raises(BadRequest, match="unknown_section"):
        reading.text_of(shelf, "nothing/like/it")


def test_reading_on_from_the_offset_gives_every_line_once(shelf: Library) -> None:
    whole = reading.text_of(shelf, "training/memory", 50_000)
    offset, parts = 0, []
    while True:
        told = reading.text_of(shelf, "training/memory", 150, offset)
        assert len(told) <= 600
        text, _, note = told.partition("\n\n(")
        parts.append(text)
        found = re.search(r"offset=(\d+)", note)
        if not found:
            break
        offset = int(found[1])
    assert all(line in "\n".join(parts) for line in whole.split("\n"))


def test_an_offset_past_the_end_is_refused(shelf: Library) -> None:
    with pytest.raises(BadRequest, match="offset_past_end"):
        reading.text_of(shelf, "training/memory", 500, 10_000)
