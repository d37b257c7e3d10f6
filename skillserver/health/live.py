"""This host's GPUs now -> facts, and what only a live look can find: a driver that does not answer, a GPU that is missing.

Nothing is started on the GPUs. The kernel messages of the last three days are read where this user may; where not, what
Xids would say stays unjudged, and the result says so. AMD GPUs are asked through their own tool.

>>> look(30.0)[0].gpus[0].label
'GPU 0 0000:19:00.0'
"""

from __future__ import annotations

from pathlib import Path

from skillserver.hardware import host
from skillserver.health import captures, infiniband
from skillserver.health.incident import Incident
from skillserver.health.reading import Facts, GpuReading, Unjudged, normal_pci

SOURCE = "live"
SHORT_S = 10.0  # for helpers beside the driver
HUNG_S = 20.0  # assumed, not measured: without persistence the first answer of many GPUs is slow, and a shorter wait proves nothing
NO_DRIVER = ("LibraryNotFound", "DriverNotLoaded", "NotFound")
PASTE = "pass captures=[{name, text}] with nvidia-smi -q and dmesg -T from the machine in question"


def look(deadline_s: float, bus: Path = host.PCI_DEVICES, root: Path = Path("/")) -> tuple[Facts, list[Incident]]:
    """Facts of every GPU that answered within `deadline_s`, and the incidents of the look itself."""
    answer = host.ask_driver(deadline_s)
    on_bus = [pci for name in host.nvidia_devices(bus) if (pci := normal_pci(name))]
    facts = Facts(gpus=[_reading(gpu) for gpu in answer.gpus])
    facts.judged = bool(facts.gpus)
    _place(facts.gpus, on_bus)
    found = [*_silence(answer, deadline_s, facts), *_failure(answer, on_bus, facts)]
    if answer.count is not None:
        found += _missing(answer, facts, on_bus, host.given_a_part(root))
    if answer.count is not None or on_bus:
        facts.add(_kernel_log())
        found += _fabric_manager(bus, facts)
    if amd := host.amd_devices(bus):
        facts.add(_amd(len(amd), deadline_s))
    if (ports := host.ib_ports(root)) and facts.judged and (read := infiniband.parse(f"{SOURCE} ports", ports)):
        facts.add(read)
    return facts, found


def _kernel_log() -> Facts:
    """Xids and known sentences; a log without any says nothing of the GPUs' health, so it is not counted as judged."""
    text = host.kernel_log(SHORT_S)
    if text is None:
        missing = "the kernel log was not read: pass dmesg -T or journalctl -k as a capture to have Xids judged"
        return Facts(unjudged=[Unjudged(SOURCE, missing)])
    read = captures.read([(f"{SOURCE} kernel log", text)])
    read.unjudged = []
    read.judged = bool(read.events or read.signs)
    return read


def _fabric_manager(bus: Path, facts: Facts) -> list[Incident]:
    """The service, on machines that have NVSwitches. GPUs that have joined their fabric do not need it for what runs."""
    state = host.service_state(host.FABRIC_MANAGER, SHORT_S) if host.nvswitches(bus) else ""
    if state not in ("inactive", "failed"):
        return []
    joined = bool(facts.gpus) and all(gpu.text("fabric_state") == "Completed" for gpu in facts.gpus)
    return [
        Incident(
            "fabric_manager_stopped",
            "warning" if joined else "critical",
            "setup",
            "the host",
            "The fabric manager does not run on a machine with NVSwitches: after the next reset or start no CUDA program starts.",
            "fix_setup: journalctl -u nvidia-fabricmanager; install the version of the driver and start it with no job running",
            "nvlink_faults",
            evidence=[f"{host.FABRIC_MANAGER}: {state}"],
        )
    ]


def _amd(count: int, deadline_s: float) -> Facts:
    said = host.ask_amd(min(deadline_s, SHORT_S))
    if said is None:
        return Facts(
            unjudged=[Unjudged(SOURCE, f"{count} AMD devices on the bus: neither amd-smi nor rocm-smi answered; pass amd-smi metric and dmesg")]
        )
    read = captures.read([(f"{SOURCE} amd", said)])
    read.unjudged = [] if read.judged else [Unjudged(SOURCE, "AMD's tool answered in a form that is not known; pass amd-smi metric as text")]
    return read


def _reading(gpu: dict[str, object]) -> GpuReading:
    values, errors, index = gpu["values"], gpu["errors"], gpu["index"]
    assert isinstance(values, dict) and isinstance(errors, dict) and isinstance(index, int)
    return GpuReading(SOURCE, normal_pci(str(gpu["pci"])), index, dict(values), {name: str(word) for name, word in errors.items()})


def _place(gpus: list[GpuReading], on_bus: list[str]) -> None:
    """A lost GPU may not tell its PCI id; when one GPU and one id are left over, they belong together."""
    nameless, left = [gpu for gpu in gpus if gpu.pci is None], set(on_bus) - {gpu.pci for gpu in gpus}
    if len(nameless) == 1 and len(left) == 1:
        nameless[0].pci = left.pop()


def _silence(answer: host.DriverAnswer, deadline_s: float, facts: Facts) -> list[Incident]:
    """The deadline passed before the driver had answered."""
    if not answer.cut:
        return []
    where = f"GPU {answer.asking}" if answer.asking is not None else "the driver"
    proved = deadline_s >= HUNG_S
    facts.unjudged.append(Unjudged(SOURCE, f"{where} and what comes after it: no answer within {deadline_s:g} s"))
    return [
        Incident(
            "driver_not_answering",
            "critical" if proved else "warning",
            "firmware",
            where,
            "NVML did not answer in time: a hung GSP or driver stops every program that asks for a GPU."
            if proved
            else "NVML did not answer in the time given; without persistence mode a first answer can take that long.",
            "reboot: look for Xid 119 or 120 in dmesg, drain, reset that GPU, reboot if the reset hangs too"
            if proved
            else f"observe: call again with deadline_s of at least {HUNG_S:g}",
            "gpu_firmware",
            evidence=[f"{len(answer.gpus)} of {'?' if answer.count is None else answer.count} GPUs had answered after {deadline_s:g} s"],
        )
    ]


def _failure(answer: host.DriverAnswer, on_bus: list[str], facts: Facts) -> list[Incident]:
    """NVML did not start, or the child broke."""
    if answer.error == "LibRmVersionMismatch":
        return [
            _setup(
                "driver_library_mismatch",
                "The driver libraries and the loaded kernel module are of different versions; no new CUDA program starts.",
                "fix_setup: when jobs have ended, reload the nvidia modules or reboot, and pin the driver packages",
                "NVML init: driver/library version mismatch",
            )
        ]
    if answer.error in NO_DRIVER:
        facts.unjudged.append(Unjudged(SOURCE, f"no NVIDIA driver answers here (NVML: {answer.error}); {PASTE}"))
        if on_bus:
            return [
                _setup(
                    "driver_not_loaded",
                    "The bus has NVIDIA devices and no driver answers for them: no CUDA program starts.",
                    "fix_setup: look at dmesg, dkms status and Secure Boot; load or rebuild the driver",
                    f"NVML init: {answer.error}; on the bus: {', '.join(on_bus)}",
                    severity="warning",
                )
            ]
    elif answer.error:
        facts.unjudged.append(Unjudged(SOURCE, f"NVML did not start ({answer.error}); {PASTE}"))
        if on_bus:
            return [
                _setup(
                    "nvml_init_failed",
                    "NVML cannot start: no CUDA program will.",
                    "fix_setup: run nvidia-smi on the host and read dmesg",
                    f"NVML init: {answer.error}",
                )
            ]
    elif not answer.ended and not answer.cut:
        facts.unjudged.append(Unjudged(SOURCE, f"the look at the driver broke off: {answer.last_words or 'no word why'}; {PASTE}"))
    return []


def _setup(code: str, reason: str, action: str, said: str, severity: str = "critical") -> Incident:
    return Incident(code, "warning" if severity == "warning" else "critical", "setup", "the host", reason, action, "driver_setup", evidence=[said])


def _missing(answer: host.DriverAnswer, facts: Facts, on_bus: list[str], part: str) -> list[Incident]:
    """Devices on the bus that NVML does not count. The ids that did answer tell which."""
    count = answer.count or 0
    if count == 0 and not on_bus:
        facts.unjudged.append(Unjudged(SOURCE, f"the driver is loaded and no GPU is here; {PASTE}"))
    if count >= len(on_bus):
        return []
    seen = {gpu.pci for gpu in facts.gpus}
    absent = [pci for pci in on_bus if pci not in seen] if len(facts.gpus) == count and None not in seen else []
    said = f"{len(on_bus)} NVIDIA devices on the PCI bus, {count} in NVML{f'; not there: {chr(44).join(absent)}' if absent else ''}"
    if part:
        facts.unjudged.append(Unjudged(SOURCE, f"{said}; inside {part} the rest may simply not be ours"))
        return []
    return [
        Incident(
            "gpu_missing",
            "critical",
            "bus",
            f"GPU {absent[0]}" if len(absent) == 1 else f"{len(on_bus) - count} GPUs",
            "The bus has a GPU that the driver does not serve: it fell off, failed to start or is not bound. Indices after it have shifted.",
            "reboot: read dmesg for that PCI id (Xid 79, RmInitAdapter), drain, power-cycle the node",
            "gpu_lost",
            absent[0] if len(absent) == 1 else None,
            [said],
        )
    ]
