"""What the tests of procedures share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skillserver import permissions
from skillserver.jobs import manager


@pytest.fixture
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home, a runtime folder and permissions of the test's own, without SLURM or GPUs."""
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(manager, "default", manager.Manager())
    for variable in ("SLURM_JOB_ID", "SLURM_CONF"):
        monkeypatch.delenv(variable, raising=False)
    before = permissions.current()
    yield
    permissions.grant(before)
