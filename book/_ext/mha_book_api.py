"""The API reference: every public module of the package, from its docstrings.

The list is the package's own: each module with ``__all__``, in the order of the layers. A public
name without a docstring of its own is a warning, and so fails the build.
"""

import importlib
import inspect
import pkgutil
import re

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

__all__ = ["public_modules", "setup", "undocumented"]

logger = logging.getLogger(__name__)

# Reading order; a module that is not named here comes after these, alphabetically.
ORDER = (
    "heads", "masks", "rope", "visibility", "attention", "softmax_vjp", "attention_vjp",
    "manual", "jax_nn", "decode", "dispatch", "parameters", "initialisers", "layers", "dropout",
    "multihead", "layer_vjp", "gradients", "grouped", "latent", "kv_cache", "cached_attention",
    "specialization.patterns", "specialization.targets", "specialization.measures",
    "specialization.streaming", "specialization.repeats", "specialization.probes",
    "specialization.agreement", "specialization.composition", "specialization.contribution",
    "pruning.importance", "pruning.order", "pruning.removal", "pruning.hard_concrete",
    "notation.equation", "notation.system", "notation.layer", "notation.page",
    "notation.rules", "notation.diagram", "costs", "counting",
    "models.tokens", "models.text", "models.records",
    "models.minilm", "models.minilm_params", "models.smollm2", "models.smollm2_params",
    "models.smollm2_cached", "models.generation",
    "models.characters", "models.tiny", "models.tiny_params", "checkpoints", "tables", "training",
    "plotting", "exercises",
)  # fmt: skip


def public_modules(package: str = "mha_book") -> list[str]:
    """Return the names of the package's modules that define a non-empty ``__all__``."""
    root = importlib.import_module(package)
    names = [info.name for info in pkgutil.walk_packages(root.__path__, f"{package}.")]
    public = [
        name
        for name in names
        if not any(piece.startswith("_") for piece in name.split("."))
        and getattr(importlib.import_module(name), "__all__", None)
    ]

    def place(name: str) -> tuple[int, str]:
        short = name.removeprefix(f"{package}.")
        return (ORDER.index(short) if short in ORDER else len(ORDER), name)

    return sorted(public, key=place)


def undocumented(module_name: str) -> list[str]:
    """Return the public names of a module, and public methods, without a docstring of their own."""
    module = importlib.import_module(module_name)
    missing = [] if (module.__doc__ or "").strip() else [module_name]
    attributes = ModuleAnalyzer.for_module(module_name).find_attr_docs()
    for name in module.__all__:
        value = getattr(module, name)
        full = f"{module_name}.{name}"
        if ("", name) in attributes:
            continue  # a constant or an alias, with a string below it that says what it is
        if inspect.isclass(value):
            # A NamedTuple or a dataclass without a docstring gets its signature as one.
            doc = value.__dict__.get("__doc__") or ""
            if not doc.strip() or doc.startswith(f"{name}("):
                missing.append(full)
            for method, function in vars(value).items():
                own = inspect.isfunction(function) and function.__module__ == module_name
                if own and not method.startswith("_") and not (function.__doc__ or "").strip():
                    missing.append(f"{full}.{method}")
        elif not (callable(value) and (value.__doc__ or "").strip()):
            missing.append(full)
    return missing


def shown_modules() -> list[str]:
    """Return the public modules that the page has a section for.

    The notation is a package of small steps: its users meet those that ``ORDER`` names.
    """
    inside = "mha_book.notation."
    return [m for m in public_modules() if not m.startswith(inside) or m[9:] in ORDER]


class ApiReference(SphinxDirective):
    """``{api-reference}``: one section a module, every public name in it."""

    def run(self):
        """Return the sections."""
        sections = []
        for name in [name for module in public_modules() for name in undocumented(module)]:
            text = f"public name without a docstring: {name}"
            logger.warning(text, location=self.get_location(), type="mha_book")
        for module in shown_modules():
            anchor = f"api-{module.split('.', 1)[1].replace('.', '-')}"
            section = nodes.section(ids=[anchor])
            section += nodes.title("", "", nodes.literal(module, module))
            domain = self.env.get_domain("std")
            domain.note_hyperlink_target(anchor, self.env.docname, anchor, module)
            rst = ["```{eval-rst}", f".. automodule:: {module}", "   :members:", "```"]
            self.state.nested_parse(StringList(rst, "api"), 0, section)
            sections.append(section)
        return sections


_DOLLAR = re.compile(r"(?<![\\$\w])\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\w)")


def dollars_to_math(app, what, name, obj, options, lines):
    """Turn ``$…$`` of the docstrings, the book's way to write mathematics, into a math role."""
    text = "\n".join(lines)
    # A formula may run over a line end; doctest lines and literals are left alone.
    pieces = re.split(r"(``.+?``|^\s*>>>.*$|^\s*\.\.\. .*$)", text, flags=re.M)
    for n in range(0, len(pieces), 2):
        joined = re.sub(
            r"(?<![\\$])\$([^$]+?)\$", lambda m: "$" + " ".join(m[1].split()) + "$", pieces[n]
        )
        pieces[n] = _DOLLAR.sub(lambda m: f":math:`{m[1]}`", joined)
    lines[:] = "".join(pieces).split("\n")


def setup(app):
    """Register the directive and the hook."""
    app.add_directive("api-reference", ApiReference)
    app.connect("autodoc-process-docstring", dollars_to_math)
