"""Questions find their sections, within the budget, and what nothing answers is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from skillserver.errors import BadRequest
from skillserver.knowledge import library, search
from skillserver.knowledge.library import Library
from skillserver.knowledge.search import Chosen
from skillserver.knowledge.sources import Folder

HEADING = re.compile(r"^## .* \[(\S+)\]$", re.M)

GOLDEN = [
    ("how do I shard optimizer states", "training/memory#zero-stages"),
    ("FSDP vs ZeRO", "training/memory#zero-stages"),
    ("gradient checkpointing", "training/memory#activation-recomputation"),
    ("expandable_segments", "training/memory#fragmentation"),
    ("torch.cuda.memory_summary", "training/memory#python-example"),
    ("CUDA out of memory", "training/memory"),
    ("显存不足怎么办", "training/memory"),
    ("NVRM: Xid 79, GPU has fallen off the bus", "debugging/gpu-faults#xid-79-fallen-off-the-bus"),
    ("掉卡了怎么处理", "debugging/gpu-faults#xid-79-fallen-off-the-bus"),
    ("Xid 94 contained ECC", "debugging/gpu-faults#xid-94-contained-ecc-error"),
    ("损失尖峰", "training/instabilities#loss-spikes"),
    ("loss suddenly jumps", "training/instabilities#loss-spikes"),
    ("max norm for gradient cliping", "training/instabilities#gradient-clipping"),
    ("allreduce busbw", "hardware/network#bus-bandwidth-of-all-reduce"),
    ("OOB network", "hardware/network#out-of-band-network"),
    ("训练卡死如何调试", "debugging/hangs"),
    ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE)", "debugging/hangs#nccl-watchdog-timeout"),
    ("pyspy native stack", "debugging/hangs#native-frames"),
    ("作业到时间被杀之前自动保存", "orchestration/slurm#save-before-the-time-limit"),
    ("slurm node drain Kill task failed", "orchestration/slurm#drained-nodes"),
]
OFF_TOPIC = [
    "how to bake sourdough bread",
    "capital of Mongolia",
    "react useEffect infinite loop",
    "宫保鸡丁怎么做",
    "postgres index not used in query plan",
]


def ids(markdown: str) -> list[str]:
    return HEADING.findall(markdown)


@pytest.mark.parametrize(("question", "section"), GOLDEN)
def test_a_golden_question_finds_its_section_among_the_first_three(shelf: Library, question: str, section: str) -> None:
    assert section in ids(search.answer(shelf, question))[:3]


@pytest.mark.parametrize("question", OFF_TOPIC)
def test_a_question_about_something_else_is_not_answered(shelf: Library, question: str) -> None:
    assert search.answer(shelf, question).startswith("no section answers this")


def test_a_refusal_lists_the_nearest_sections_with_ids_and_titles(shelf: Library) -> None:
    told = search.answer(shelf, "slurm accounting database mysql fairshare weights")
    assert told.startswith("no section answers this. The nearest, which cover at most ")
    assert re.search(r"^- `orchestration/slurm\S*` SLURM", told, re.M)


def test_a_half_covered_question_names_what_the_best_section_lacks(shelf: Library) -> None:
    assert "does not speak of: mongodb" in search.answer(shelf, "gradient clipping threshold mongodb")


def test_each_section_comes_whole_with_id_trail_lines_and_source(shelf: Library) -> None:
    told = search.answer(shelf, "NCCL watchdog timeout")
    assert told.startswith(
        "## NCCL watchdog timeout [debugging/hangs#nccl-watchdog-timeout]\n"
        "_When a run hangs · handbook/debugging/hangs.md:14-17 · "
        "source: PyTorch distributed https://docs.pytorch.org/docs/stable/distributed.html (+1)_\n\n"
        "One rank never entered the collective, so all others ran into the timeout of 10 minutes. Raise it only when the rank was merely slow."
    )
    assert "<!--" not in told


@pytest.mark.parametrize("max_tokens", [100, 150, 250, 400, 1000, 2000])
@pytest.mark.parametrize("question", ["gradeint checkpionting and memory of activations", "NCCL timeout hang", "Xid ECC error"])
def test_the_budget_holds_and_the_best_section_is_always_there(shelf: Library, question: str, max_tokens: int) -> None:
    told = search.answer(shelf, question, max_tokens)
    assert len(told) <= 4 * max_tokens
    assert told.startswith("## ")


def test_a_section_longer_than_the_budget_is_cut_at_a_line_and_says_how_to_read_on(tmp_path: Path) -> None:
    (tmp_path / "long.md").write_text("# Long\n\n## Zebra\n```\n" + "zebra crossing line\n" * 300 + "```\n", encoding="utf-8")
    told = search.answer(library.at((Folder("", str(tmp_path), ""),), tmp_path / "cache"), "zebra", 200)
    assert len(told) <= 800
    assert "read_knowledge with id=long#zebra shows the rest" in told
    assert told.count("```") == 2
    assert "zebra crossing line\n```" in told


@pytest.mark.parametrize("query", ["", "   ", "?!...", "the of a"])
def test_a_question_without_a_word_is_refused(shelf: Library, query: str) -> None:
    with pytest.raises(BadRequest, match=r"empty_query: .*no word to search for"):
        search.answer(shelf, query)


def test_a_question_of_50000_characters_is_answered_with_a_note(shelf: Library) -> None:
    told = search.answer(shelf, "NCCL watchdog timeout in a collective " * 1350)
    assert ids(told)[0] == "debugging/hangs#nccl-watchdog-timeout"
    assert "characters and was cut to" in told


def test_query_syntax_is_only_text(shelf: Library) -> None:
    assert ids(search.answer(shelf, 'NOT ( "gradient clipping" AND norm:[0 TO 1.0]* ?'))[0] == "training/instabilities#gradient-clipping"


def test_a_typo_is_said_not_silent(shelf: Library) -> None:
    assert "did you mean: gradient (for gradeint)? Both spellings were searched" in search.answer(shelf, "gradeint clipping")


def test_the_same_text_under_two_ids_is_shown_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.md").write_text(f"# Page {name}\n\n## Zebra\nStripes, black and white.\n", encoding="utf-8")
    told = search.answer(library.at((Folder("", str(tmp_path), ""),), tmp_path / "cache"), "zebra stripes")
    assert ids(told) == ["a#zebra"]
    assert "same text: b#zebra" in told


def test_answers_are_the_same_every_time_and_for_four_threads(shelf: Library) -> None:
    from concurrent.futures import ThreadPoolExecutor

    questions = [question for question, _ in GOLDEN] * 10
    alone = [search.answer(shelf, question) for question in questions]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda question: search.answer(shelf, question), questions)) == alone


@pytest.mark.parametrize(
    ("only", "found"),
    [
        (Chosen(part="training"), {"training/memory", "training/instabilities"}),
        (Chosen(part="training/memory.md"), {"training/memory"}),
        (Chosen(part="training/memory", kind="code"), {"training/memory"}),
        (Chosen(kind="failure"), {"debugging/hangs", "training/memory", "debugging/gpu-faults", "orchestration/slurm", "training/instabilities"}),
        (Chosen(source="ours", part="hardware"), {"hardware/network"}),
    ],
)
def test_a_filter_leaves_only_its_sections(shelf: Library, only: Chosen, found: set[str]) -> None:
    told = search.answer(shelf, "memory gradient timeout error loss network", 8000, only)
    near = re.findall(r"^- `(\S+)`", told, re.M)
    assert {name.partition("#")[0] for name in (ids(told) or near)} <= found
    assert ids(told) or near


def test_a_refusal_under_a_filter_names_the_filter(shelf: Library) -> None:
    told = search.answer(shelf, "NCCL watchdog timeout", 2000, Chosen(part="hardware"))
    assert told.startswith("no section answers this")
    assert "searched only part=hardware: ask without it to search all" in told


def test_an_unknown_part_or_source_is_refused_with_what_there_is(shelf: Library) -> None:
    with pytest.raises(BadRequest, match=r"unknown_part: .*Valid: debugging"):
        search.answer(shelf, "gradient", 2000, Chosen(part="cooking"))
    with pytest.raises(BadRequest, match=r"unknown_source: .*Valid: ours"):
        search.answer(shelf, "gradient", 2000, Chosen(source="cooking"))


def test_a_word_that_only_asks_is_never_named_as_missing(shelf: Library) -> None:
    told = search.answer(shelf, "how does gradient clipping differ from mongodb and why would someone use both")
    assert "does not speak of: mongodb.)" in told


def test_what_nearly_answers_is_shown_under_the_refusal(shelf: Library) -> None:
    told = search.answer(shelf, "gradient clipping for bakers pastry cooks")
    assert told.startswith("no section answers this. The nearest")
    assert ids(told) == ["training/instabilities#gradient-clipping"]
    assert ids(search.answer(shelf, "how to bake sourdough bread")) == []


def test_sections_that_say_nearly_the_same_are_named_with_the_better_one(tmp_path: Path) -> None:
    same = "A zebra crosses the road at the striped lines when every car has stopped and the light is green for those on foot"
    (tmp_path / "a.md").write_text(f"# Roads\n\n## Zebra crossing\n{same}; then it is safe.\n", encoding="utf-8")
    (tmp_path / "b.md").write_text(f"# Beasts\n\n## Zebras in town\n{same}, says the keeper.\n", encoding="utf-8")
    (tmp_path / "c.md").write_text("# Paint\n\n## Zebra paint\nStriped paint for a crossing costs ten a litre.\n", encoding="utf-8")
    told = search.answer(library.at((Folder("", str(tmp_path), ""),), tmp_path / "cache"), "zebra crossing")
    assert "· also: b#zebras-in-town" in told.split("\n\n")[0]
    assert ids(told)[0] == "a#zebra-crossing"


def test_an_amount_is_not_missed_by_name_but_a_code_is(shelf: Library) -> None:
    assert "3000" not in search.answer(shelf, "gradient clipping mongodb after 3000 steps")
    assert re.search(r"does not speak of: .*\b31\b", search.answer(shelf, "contained ECC error of GPU, Xid 31, drain mongodb"))


def test_a_name_with_a_version_is_searched_without_it_too(shelf: Library) -> None:
    assert ids(search.answer(shelf, "fsdp2 stages"))[0] == "training/memory#zero-stages"


def test_of_a_long_section_the_part_that_was_asked_for_is_shown(tmp_path: Path) -> None:
    paragraphs = [f"Paragraph {number} tells of beasts in the savannah and how they walk.\nIt goes on for a while longer." for number in range(60)]
    paragraphs[40] = "```text\nokapi\n\nstripes\n```"
    (tmp_path / "long.md").write_text("# Long\n\n## Beasts\n" + "\n\n".join(paragraphs) + "\n", encoding="utf-8")
    told = search.answer(library.at((Folder("", str(tmp_path), ""),), tmp_path / "cache"), "beasts okapi stripes", 500)
    assert "```text\nokapi\n\nstripes\n```" in told
    assert re.search(r"\(lines \d+-\d+ of 182; read_knowledge with id=long#beasts shows all\.\)", told)
    assert len(told) <= 2000
