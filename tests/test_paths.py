"""Where files live, also for a user who has no home."""

import os
from pathlib import Path

import pytest

from skillserver import paths


def test_a_user_without_a_home_keeps_state_in_the_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SKILLSERVER_HOME", "SKILLSERVER_CACHE", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os.path, "expanduser", str)  # what it does where the password file does not know the user id
    below = paths.runtime()
    assert (paths.home(), paths.cache()) == (below / ".local/state/skillserver", below / ".cache/skillserver")


def test_a_home_of_ones_own_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SKILLSERVER_CACHE", raising=False)
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path / "训练"))
    assert (paths.home(), paths.cache()) == (tmp_path / "训练", tmp_path / "训练" / "cache")
