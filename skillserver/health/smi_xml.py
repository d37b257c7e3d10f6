"""`nvidia-smi -q -x` XML -> GPU readings; a document cut in the middle keeps the GPUs that are whole.

The document type line is dropped, one with declarations of its own is refused: nvidia-smi writes none, and entities
are how a small file becomes a large one. Does not judge.

>>> parse("paste", "<nvidia_smi_log><gpu id='00000000:01:00.0'><persistence_mode>Enabled</persistence_mode></gpu></nvidia_smi_log>").gpus[0].pci
'0000:01:00.0'
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from skillserver.health import fields
from skillserver.health.reading import Facts, GpuReading, Unjudged, normal_pci

KIND = "nvidia-smi -q -x XML"
START, END = "<nvidia_smi_log", "</nvidia_smi_log>"
DOCTYPE = re.compile(r"<!DOCTYPE[^>\[]*(\[|>)", re.I)
DEEPEST = 12  # nvidia-smi nests 7 levels


def parse(source: str, text: str) -> Facts | None:
    """Facts of every document in the text, or None when there is none."""
    starts = [found.start() for found in re.finditer(START, text)]
    if not starts:
        return None
    facts = Facts()
    if any(found[1] == "[" for found in DOCTYPE.finditer(text)) or "<!ENTITY" in text:
        facts.unjudged.append(Unjudged(source, "XML that declares entities: refused; expected nvidia-smi -q -x as it was printed"))
        return facts
    for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
        end = text.find(END, start, stop)
        _document(source, text[start : stop if end < 0 else end + len(END)], facts)
    facts.judged = any(fields.judgeable(gpu) for gpu in facts.gpus)
    return facts


def _document(source: str, document: str, facts: Facts) -> None:
    parser: Any = ElementTree.XMLPullParser(["start", "end"])
    attached: int | None = None
    open_gpu: str | None = None
    gpus: list[GpuReading] = []
    try:
        parser.feed(document)
        parser.close()
    except ElementTree.ParseError as problem:
        facts.unjudged.append(Unjudged(source, f"the XML is cut or broken ({problem}): GPUs after that point were not judged"))
    try:
        for event, element in parser.read_events():
            if event == "start":
                open_gpu = element.get("id") if element.tag == "gpu" else open_gpu
            elif element.tag == "gpu":
                gpus.append(_gpu(source, element))
                open_gpu = None
            elif element.tag == "attached_gpus":
                attached = int(element.text) if (element.text or "").strip().isdigit() else None
    except ElementTree.ParseError:
        pass  # said above; the events before it were read
    _say_what_is_missing(source, facts, attached, open_gpu, gpus)
    facts.gpus += gpus


def _say_what_is_missing(source: str, facts: Facts, attached: int | None, open_gpu: str | None, gpus: list[GpuReading]) -> None:
    if open_gpu:
        facts.unjudged.append(Unjudged(source, f"GPU {open_gpu}: its XML does not end, not judged"))
    if attached is not None and len(gpus) < attached:
        said = f"{attached} GPUs are attached and {len(gpus)} shown here: cut, or filtered with -i; the rest was not judged"
        facts.unjudged.append(Unjudged(source, said))
    elif attached == len(gpus):
        for index, gpu in enumerate(gpus):
            gpu.index = index


def _gpu(source: str, element: ElementTree.Element) -> GpuReading:
    return fields.read(_leaves(element, ()), source, normal_pci(element.get("id")))


def _leaves(element: ElementTree.Element, above: tuple[str, ...]) -> Iterator[fields.Line]:
    for child in element:
        if len(child) and len(above) < DEEPEST:
            yield from _leaves(child, (*above, child.tag))
        elif child.tag != "supported_graphics_clock":
            yield above, child.tag, child.text or ""
