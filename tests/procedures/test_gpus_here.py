import os

import psutil
import pytest

from skillserver.errors import BadRequest, NotHere
from skillserver.procedures import gpus_here

GPUS = """\
0, GPU-aaaa, NVIDIA H200, 4, 0
1, GPU-bbbb, NVIDIA H200, 71234, 99
2, GPU-cccc, NVIDIA H200, 30000, 0
3, GPU-dddd, NVIDIA H200, [N/A], [N/A]
"""


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Stands a program of the same name before the real one, answering with these GPUs and processes."""

    def answer(gpus=GPUS, apps=""):
        (tmp_path / "gpus").write_text(gpus)
        (tmp_path / "apps").write_text(apps)
        program = tmp_path / "nvidia-smi"
        program.write_text(f'#!/bin/sh\ncase "$1" in --query-gpu*) cat {tmp_path}/gpus;; *) cat {tmp_path}/apps;; esac\n')
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    answer()
    return answer


def choose(device, nproc=0, built=True):
    return gpus_here.choose(device, nproc=nproc, built_for_gpu=built, torch="2.13.0")


def test_the_first_gpus_are_chosen_one_a_rank(smi):
    assert choose("auto").locks == ["GPU-aaaa"]
    assert choose("cuda", nproc=3).locks == ["GPU-aaaa", "GPU-bbbb", "GPU-cccc"]
    assert (choose("cuda:2").locks, choose("cuda:2").name) == (["GPU-cccc"], "cuda:2")
    assert (choose("cpu").locks, choose("cpu").gpus) == (["cpu"], [])


@pytest.mark.parametrize(
    ("device", "locks", "name"),
    [("all", ["GPU-aaaa", "GPU-bbbb", "GPU-cccc", "GPU-dddd"], "cuda:0,cuda:1,cuda:2,cuda:3"),
     ("each", ["GPU-aaaa", "GPU-bbbb", "GPU-cccc", "GPU-dddd"], "cuda:0,cuda:1,cuda:2,cuda:3"),
     ("cuda:2, cuda:0,cuda:2", ["GPU-cccc", "GPU-aaaa"], "cuda:2,cuda:0")],
)  # fmt: skip
def test_several_devices_are_all_locked_and_looked_at(smi, device, locks, name):
    chosen = choose(device)
    assert (chosen.locks, chosen.name) == (locks, name)
    smi(apps="GPU-cccc, 4711, python, 30000\n")
    assert any("GPU 2" in sentence for sentence in gpus_here.busy(chosen))


def test_a_list_with_a_device_that_is_not_there_is_refused(smi):
    with pytest.raises(BadRequest, match="cuda:9"):
        choose("cuda:0,cuda:9")
    with pytest.raises(BadRequest, match="unknown_device"):
        choose("cuda:0,cpu")
    with pytest.raises(NotHere, match="built for CPUs"):
        choose("all", built=False)


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [("2,0", ["GPU-cccc", "GPU-aaaa"]), ("GPU-bb", ["GPU-bbbb"]), ("0,9,1", ["GPU-aaaa"]), ("MIG-1234", ["MIG-1234"])],
)
def test_visible_devices_choose_as_cuda_would(smi, monkeypatch, visible, chosen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.uuid for gpu in gpus_here.visible_gpus()] == chosen
    assert choose("cuda:0").locks == chosen[:1]


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_are_not_there(smi, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert choose("auto").name == "cpu"
    with pytest.raises(NotHere, match="no_gpu"):
        choose("cuda")


def test_a_torch_built_for_cpus_runs_on_the_cpu_and_says_so_or_is_refused(smi):
    assert (choose("auto", built=False).name, choose("auto", built=False).note) == (
        "cpu", "4 GPUs are here, but torch 2.13.0 is built for CPUs: this runs on the CPU")  # fmt: skip
    with pytest.raises(NotHere, match="torch_without_gpu"):
        choose("cuda", built=False)


def test_unknown_devices_and_numbers_are_refused_with_the_choices(smi):
    with pytest.raises(BadRequest, match="unknown_device"):
        choose("gpu")
    with pytest.raises(BadRequest) as caught:
        choose("cuda:7")
    assert caught.value.valid == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]


def test_an_idle_gpu_is_not_busy(smi):
    assert gpus_here.busy(choose("cuda:0")) == []
    assert gpus_here.busy(choose("cuda:3")) == []


def test_the_owner_of_a_busy_gpu_is_named(smi):
    smi(apps="GPU-bbbb, 999999999, /usr/bin/python3, 71230\nGPU-bbbb, 999999998, tool, with comma, 4\n")
    assert gpus_here.busy(choose("cuda:1")) == [
        "GPU 1 (NVIDIA H200) is used by pid 999999999 python3, 71230 MiB; pid 999999998 tool, with comma, 4 MiB"]  # fmt: skip
    assert gpus_here.busy(choose("cuda:0")) == []


def test_the_user_is_named_only_when_the_program_agrees(smi):
    me = psutil.Process()
    smi(apps=f"GPU-aaaa, {me.pid}, {me.exe()}, 5000\nGPU-bbbb, {me.pid}, /opt/other-program, 5000\n")
    (own,), (other,) = gpus_here.busy(choose("cuda:0")), gpus_here.busy(choose("cuda:1"))
    assert f"of user {me.username()}" in own
    assert "of user" not in other


def test_memory_that_no_visible_process_owns_is_busy_too(smi):
    (said,) = gpus_here.busy(choose("cuda:2"))
    assert said.startswith("GPU 2 (NVIDIA H200) shows 30000 MiB and 0% in use by processes that are not visible from here")


def test_a_slice_is_not_judged_and_a_note_says_so(smi, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    chosen = choose("cuda")
    assert (gpus_here.busy(chosen), chosen.note) == ([], "whether GPU 0 is busy was not checked")
