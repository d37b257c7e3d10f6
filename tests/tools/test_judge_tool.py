"""The face: one of text and path, files within limits, the same answer either way."""

from pathlib import Path

import pytest

from skillserver import contract
from skillserver.errors import BadRequest
from skillserver.tools.judge import judge_measurement


def test_a_file_is_judged_like_its_text(tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    file.write_text("8xA100 nccl busbw 180", encoding="utf-8")
    assert judge_measurement(path=str(file)) == judge_measurement(text="8xA100 nccl busbw 180")


def test_neither_and_both_are_refused(tmp_path: Path) -> None:
    for arguments in ({}, {"text": "x", "path": "y"}, {"text": "  "}):
        with pytest.raises(BadRequest, match="one_of_text_path"):
            judge_measurement(**arguments)


def test_binary_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "core"
    file.write_bytes(b"\0\1\2")
    with pytest.raises(BadRequest, match="not_text"):
        judge_measurement(path=str(file))


@pytest.mark.parametrize("text", ["-5 GB/s all-reduce on 8xH100", "busbw: -342 GB/s 8xH100", "MAMF -650 TFLOPS H100", "ib latency -3 us NDR"])
def test_a_negative_number_is_refused_and_not_read_without_its_sign(text: str) -> None:
    with pytest.raises(BadRequest, match="negative_measurement: -"):
        judge_measurement(text=text)


@pytest.mark.parametrize(
    "text", ["300-342 GB/s all-reduce on 8xH100", "all_reduce_perf -b 8 -e 8G: 342 GB/s, 8xH100", "8xH100 all-reduce - 342 GB/s"]
)
def test_a_dash_or_a_flag_makes_no_number_negative(text: str) -> None:
    assert judge_measurement(text=text).judged["busbw_gb_s"] == 342.0


def test_the_answer_is_one_finite_document() -> None:
    document = contract.document(judge_measurement(text="MAMF 650 TFLOPS H100 bf16"))
    assert (document["verdict"], document["share"], document["compared_with"]["value"]) == ("warning", 0.8181, 794.5)
