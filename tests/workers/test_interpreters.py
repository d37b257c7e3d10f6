import asyncio
import sys
import textwrap

import pytest

from skillserver import permissions
from skillserver.errors import BadRequest, NotHere
from skillserver.permissions import Permissions
from skillserver.workers import interpreters

VERSION_PY = """
from typing import Optional
__version__ = '2.9.9+cu130'
cuda: Optional[str] = '13.0'
hip: Optional[str] = None
"""


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """No environment of the tester's own, and permissions as they were."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH"):
        monkeypatch.delenv(variable, raising=False)
    before = permissions.current()
    yield
    permissions.grant(before)


def environment(folder, torch="", broken=False):
    """A folder like a virtual environment whose python is a script, with a torch that must not be imported."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    site = folder / "site"
    if torch:
        (site / "torch").mkdir(parents=True)
        (site / "torch" / "__init__.py").write_text("raise SystemExit('torch was imported')")
        (site / "torch" / "version.py").write_text(torch)
    python.write_text(textwrap.dedent(f"""\
        #!/bin/sh
        {"echo 'libpython is missing' >&2; exit 127" if broken else ""}
        PYTHONPATH={site} exec {sys.executable} -S "$@"
        """))  # fmt: skip
    python.chmod(0o755)
    return folder


def found(python=None, **more):
    return asyncio.run(interpreters.find(python, **more))


def test_torch_is_read_without_importing_it(tmp_path):
    folder = environment(tmp_path / "train", VERSION_PY)
    one = found(str(folder))
    assert (one.path, one.torch, one.cuda, one.hip) == (str(folder / "bin" / "python"), "2.9.9+cu130", "13.0", "")
    assert one.source == f"python={str(folder)!r}"
    assert one.python == ".".join(map(str, sys.version_info[:3]))


def test_a_python_binary_is_taken_as_well_as_its_folder(tmp_path):
    folder = environment(tmp_path / "train", VERSION_PY)
    assert found(str(folder / "bin" / "python")).torch == "2.9.9+cu130"


def test_the_configured_one_comes_before_the_active_one_and_that_before_ours(tmp_path, monkeypatch):
    first, active = environment(tmp_path / "first", VERSION_PY), environment(tmp_path / "active", VERSION_PY)
    monkeypatch.setenv("VIRTUAL_ENV", str(active))
    assert found().source == "VIRTUAL_ENV"
    permissions.grant(Permissions(pythons={"train": str(first)}))
    assert (found().source, found("train").source) == ("serve --python train", "python='train'")
    assert [source for _, source in interpreters.candidates(None)] == [
        "serve --python train", "VIRTUAL_ENV", "the interpreter that runs skillserver"]  # fmt: skip


def test_an_environment_without_torch_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", str(environment(tmp_path / "bare")))
    monkeypatch.setenv("CONDA_PREFIX", str(environment(tmp_path / "conda", VERSION_PY)))
    assert found().source == "CONDA_PREFIX"
    assert found(needs_torch=False).source == "VIRTUAL_ENV"


def test_every_place_looked_at_is_named(tmp_path, monkeypatch):
    bare, broken = environment(tmp_path / "bare"), environment(tmp_path / "broken", broken=True)
    monkeypatch.setenv("VIRTUAL_ENV", str(bare))
    monkeypatch.setenv("CONDA_PREFIX", str(broken))
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    with pytest.raises(NotHere) as caught:
        found()
    assert caught.value.code == "no_torch"
    assert f"{bare}/bin/python (VIRTUAL_ENV): no torch" in str(caught.value)
    assert f"{broken}/bin/python (CONDA_PREFIX): cannot run (libpython is missing)" in str(caught.value)
    assert "pip install 'skillserver[torch]'" in caught.value.next


def test_the_one_that_a_call_names_is_the_only_one_tried(tmp_path, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", str(environment(tmp_path / "good", VERSION_PY)))
    with pytest.raises(NotHere, match="no_torch"):
        found(str(environment(tmp_path / "bare")))


def test_a_python_that_is_nowhere_lists_the_names():
    permissions.grant(Permissions(pythons={"train": "/envs/train"}))
    with pytest.raises(BadRequest) as caught:
        found("/no/such/environment")
    assert (caught.value.code, caught.value.valid) == ("no_such_python", ["train"])


def test_paths_are_refused_where_only_names_are_permitted(tmp_path):
    folder = environment(tmp_path / "train", VERSION_PY)
    permissions.grant(Permissions(pythons={"train": str(folder)}, pythons_by_name_only=True))
    assert found("train").torch == "2.9.9+cu130"
    with pytest.raises(NotHere, match="python_not_permitted"):
        found(str(folder))


def test_the_link_of_an_environment_is_not_followed(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert interpreters.candidates(str(tmp_path)) == [(f"{tmp_path}/bin/python", f"python={str(tmp_path)!r}")]


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-this-name/env", "a\0b", "/nowhere/secret", ".", "训练环境"])
def test_a_name_that_no_file_can_have_is_refused_like_any_other(name):
    with pytest.raises(BadRequest, match="no_such_python"):
        found(name)


def test_a_json_py_in_the_users_folder_is_not_what_the_probe_imports(tmp_path, monkeypatch):
    for module in ("json", "re", "importlib", "torch"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('the folder of the user was imported')")
    monkeypatch.chdir(tmp_path)
    assert found(str(environment(tmp_path / "env", VERSION_PY))).torch == "2.9.9+cu130"


def test_a_python_that_is_too_old_for_the_workers_says_so(tmp_path):
    python = tmp_path / "python"
    python.write_text("""#!/bin/sh\necho '{"python": "3.6.15", "torch": "", "cuda": "", "hip": ""}'\n""")
    python.chmod(0o755)
    with pytest.raises(NotHere, match=r"Python 3\.6\.15 is too old, workers need 3\.9"):
        found(str(python))


def test_a_program_that_is_no_python_is_named_with_what_it_did():
    with pytest.raises(NotHere, match="cannot run \\(status 0, no answer\\)"):
        found("/bin/true")


def test_a_torch_that_is_too_old_for_the_workers_says_so(tmp_path):
    with pytest.raises(NotHere, match=r"torch 1\.13\.1\+cu117 is too old, workers need 2\.4"):
        found(str(environment(tmp_path / "old", "__version__ = '1.13.1+cu117'\n")))
    assert found(str(environment(tmp_path / "own", "__version__ = 'main-build'\n"))).torch == "main-build"
