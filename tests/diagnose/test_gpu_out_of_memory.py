"""The numbers of an out-of-memory message, in the wordings of three generations of PyTorch."""

import pytest

from skillserver.diagnose import explain, out_of_memory, reading

GIB = 2**30
NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of 79.14 GiB of which {free} is free. "
    "{extra}Including non-PyTorch memory, this process has {used} memory in use. Of the allocated memory {allocated} is allocated by PyTorch, "
    "and {idle} is reserved by PyTorch but unallocated."
)
OLD = (
    "CUDA out of memory. Tried to allocate {tried} (GPU 0; 15.90 GiB total capacity; {allocated} already allocated; {free} free; "
    "{reserved} reserved in total by PyTorch)"
)


def new(tried: str, free: str, used: str, allocated: str, idle: str, extra: str = "") -> str:
    return NEW.format(tried=tried, free=free, used=used, allocated=allocated, idle=idle, extra=extra)


def test_every_number_of_the_new_wording_is_read() -> None:
    numbers = out_of_memory.parse(new("2.00 GiB", "512.00 MiB", "78.00 GiB", "70.00 GiB", "6.00 GiB", "Process 7 has 640.00 MiB memory in use. "))
    assert numbers == out_of_memory.Numbers(
        tried=2 * GIB, capacity=79.14 * GIB, free=0.5 * GIB, in_use=78 * GIB, allocated=70 * GIB, unallocated=6 * GIB, named_processes=1
    )


def test_the_misspelt_wording_of_torch_2_1_is_read() -> None:
    text = new("2.00 GiB", "512.00 MiB", "78.00 GiB", "70.00 GiB", "6.00 GiB")
    assert out_of_memory.parse(text.replace("capacity", "capacty")) == out_of_memory.parse(text)


def test_the_old_wording_gives_what_is_idle_as_a_difference() -> None:
    numbers = out_of_memory.parse(OLD.format(tried="512.00 MiB", allocated="13.00 GiB", free="0 bytes", reserved="14.50 GiB"))
    assert (numbers.free, numbers.unallocated) == (0, 1.5 * GIB)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (new("2.00 GiB", "512.00 MiB", "78.00 GiB", "70.00 GiB", "6.00 GiB"), "fragmentation"),
        (new("8.00 GiB", "512.00 MiB", "78.00 GiB", "76.00 GiB", "300.00 MiB"), "shortage"),
        (new("184.13 GiB", "37.02 GiB", "42.05 GiB", "38.58 GiB", "850.91 MiB"), "too_big"),
        (new("2.00 GiB", "100.00 MiB", "20.00 GiB", "18.00 GiB", "500.00 MiB"), "other_process"),
        (new("2.00 GiB", "40.00 GiB", "38.00 GiB", "36.00 GiB", "500.00 MiB"), "limited"),
        (new("32.00 MiB", "41.56 MiB", "78.90 GiB", "76.00 GiB", "1.90 MiB"), "shortage"),
        (OLD.format(tried="512.00 MiB", allocated="13.13 GiB", free="415.88 MiB", reserved="14.80 GiB"), "fragmentation"),
        (OLD.format(tried="20.00 MiB", allocated="612.33 MiB", free="14.75 MiB", reserved="622.00 MiB"), "other_process"),
        ("RuntimeError: CUDA error: out of memory", "unknown"),
    ],
)
def test_the_kind_of_shortage_is_judged_from_the_numbers(text: str, kind: str) -> None:
    assert out_of_memory.judge(out_of_memory.parse(text)).kind == kind


def test_a_process_that_may_be_this_one_is_not_called_another() -> None:
    """Inside a container the message says `Process N` of the process itself."""
    text = (
        "CUDA out of memory. Tried to allocate 10.74 GiB. GPU 0 has a total capacity of 47.53 GiB of which 7.86 GiB is free. "
        "Process 471567 has 39.44 GiB memory in use. Of the allocated memory 20.52 GiB is allocated by PyTorch, with 12.03 GiB "
        "allocated in private pools (e.g., CUDA Graphs), and 18.59 GiB is reserved by PyTorch but unallocated."
    )
    judged = out_of_memory.judge(out_of_memory.parse(text))
    assert judged.kind == "fragmentation"
    assert "private pools" in judged.reading[1]


def test_a_message_broken_over_lines_is_read_whole() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.28 GiB. \nGPU 0 has a total capacity of 139.81 GiB of which 7.30 GiB "
        "is free. \nOf the allocated memory 115.89 GiB is allocated by PyTorch, \nand 10.53 GiB is reserved by PyTorch but unallocated."
    )
    cause = explain.explain(reading.of_text(text)).causes[0]
    assert cause.title == "GPU out of memory by fragmentation"
    assert "expandable_segments" in cause.remedy[0]


def test_a_tensor_larger_than_the_card_gets_no_advice_on_allocators() -> None:
    judged = out_of_memory.judge(out_of_memory.parse(new("184.13 GiB", "37.02 GiB", "42.05 GiB", "38.58 GiB", "850.91 MiB")))
    assert "expandable" not in " ".join(judged.remedies)
