"""The face of log diagnosis: a training log goes in, what an engineer would act on comes out, with its step.

>>> diagnose_training_log(text="iter 0: loss 4.2, time 100.00ms, mfu 1.00%").format
'nanogpt'
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from skillserver import permissions
from skillserver.contract import tool
from skillserver.diagnose import log_plot, log_reading, log_report
from skillserver.diagnose.log_reading import Log
from skillserver.diagnose.log_report import LogDiagnosis
from skillserver.errors import BadRequest


@tool(toolset="core", title="Diagnose a training log", read_only=True)
def diagnose_training_log(
    path: Annotated[str, Field(description="log file, any size: stdout, trainer_state.json, metrics.csv, JSONL, tfevents")] = "",
    text: Annotated[str, Field(description="or its lines")] = "",
    paths: Annotated[list[str], Field(max_length=8, description="or 2+ runs to compare: same-step spikes = data")] = [],  # noqa: B006
    plot: Annotated[str, Field(description='"text" draws the loss with its events; FILE.png writes it')] = "",
) -> LogDiagnosis:
    """Call when loss, gradient norm or speed of a run looks odd, or to check a log: spikes, divergence, NaN, loss scale, plateau, overfit, slow GPU,
    hang, restarts, hardware errors, each with its step. Megatron, DeepSpeed, HF, Lightning, torchtitan, NeMo, OLMo and more.

    Exactly one of path, text and paths. Findings of severity info are for the record; warnings and criticals are to act on.
    """
    if sum(map(bool, (path, text, paths))) != 1 or len(paths) == 1:
        raise BadRequest("one_of_path_text_paths", "give exactly one of path, text and paths (two or more)",
                         next="diagnose_training_log(path=...) for one run, paths=[a, b] to compare two")  # fmt: skip
    if plot and paths:
        raise BadRequest("plot_of_one", "plot shows one run", next="diagnose_training_log(path=..., plot=...) for each")
    picture = log_plot.wanted(plot) if plot else None
    if text:
        return _plotted("text", log_reading.read_text(text), plot, picture)
    if path:
        file = permissions.readable(path)
        return _plotted(file.name, log_reading.read_file(file), plot, picture)
    files = [permissions.readable(each) for each in paths]
    return log_report.diagnose([(_name(file, files), log_reading.read_file(file)) for file in files])


def _plotted(name: str, log: Log, plot: str, picture: Path | None) -> LogDiagnosis:
    """The report, with the plot where one was asked for."""
    found = log_report.diagnose([(name, log)])
    if plot:
        found.plot = log_plot.write(picture, log.run, found.findings) if picture else "\n" + log_plot.draw(log.run, found.findings)
    return found


def _name(file: Path, files: list[Path]) -> str:
    """The file's name, with its folder when several are called the same."""
    return file.name if [each.name for each in files].count(file.name) == 1 else f"{file.parent.name}/{file.name}"
