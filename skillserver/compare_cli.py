"""`skillserver compare`: the kept results of check_node and the benchmarks beside each other, over time and across nodes.

    skillserver compare
    skillserver compare /shared/history n17.json --json --fail-on warning

Thin: results are read by `procedures/kept_results.py` and compared by `measure/history.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillserver import inputs
from skillserver.errors import BadRequest, SkillError

LEVELS = ("", "warning", "critical")  # nothing here is ever critical; the word is taken for scripts that serve both verbs


def compare(places: Annotated[list[Path] | None, typer.Argument(help="Result files or folders; nothing for this home's own history.")] = None,
            host: Annotated[str, typer.Option(help="Compare only this host with its own past.")] = "",
            as_json: Annotated[bool, typer.Option("--json", help="Print the one result document as JSON.")] = False,
            fail_on: Annotated[str, typer.Option("--fail-on", help="Exit 3 when the verdict is this bad: warning.")] = "") -> None:  # fmt: skip
    """Compare kept results of check_node and the benchmarks over time and across nodes; names the odd one out."""
    if fail_on not in LEVELS:
        raise typer.BadParameter(f"{fail_on!r} is not warning or critical", param_hint="--fail-on")
    from skillserver import contract, terminal
    from skillserver.measure import history
    from skillserver.procedures import kept_results

    try:
        results, broken = kept_results.read(places or [place for place in [kept_results.folder()] if place.is_dir()])
        if host and host not in {one.host for one in results}:
            raise BadRequest("unknown_host", f"no result of host {host!r} is kept", valid=sorted({one.host for one in results}),
                             next="run check_node there, or name the folder that holds its results")  # fmt: skip
    except SkillError as refused:
        if as_json:
            typer.echo(inputs.pretty(refused.document()))
        raise
    answer = history.compare(results, host)
    answer.skipped += broken
    document = contract.document(answer)
    typer.echo(inputs.pretty(document)) if as_json else terminal.show(document)
    raise typer.Exit(inputs.exit_code(document, fail_on))
