"""The theorems of ``proofs/`` on their page, and a badge on the equations that they prove."""

import re
from collections import defaultdict
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from mha_book_claims import part, refer
from mha_book_equations import add_directive, load_theorems, proved

_USED = re.compile(r"^(?:Definition|Fixpoint|Inductive|Record)\b.*?\.$", re.S | re.M)
_ASSUMED = re.compile(r"^(?:Variables?|Hypothes[ie]s)\b.*?\.$", re.S | re.M)


def folded(title: str, source: str) -> list[nodes.Node]:
    """Return Coq's text in a fold."""
    head = nodes.raw("", f"<details><summary>{title}</summary>", format="html")
    block = nodes.literal_block(source, source, language="coq")
    return [head, block, nodes.raw("", "</details>", format="html")]


def theorems(self):
    """``{theorems} FILE``: the theorems of a file: in words, in Coq, and their proofs, folded."""
    root, std, out = Path(self.env.srcdir), self.env.get_domain("std"), []
    path = root / "proofs" / f"{self.arguments[0]}.v"
    self.env.note_dependency(str(path))
    self.env.note_dependency(str(root / "proofs" / "theorems.yml"))
    text = path.read_text(encoding="utf8")
    for theorem in (t for t in load_theorems(root) if t["file"] == path.stem):
        name = theorem["name"].replace("_", " ")
        title = theorem.get("title", name.capitalize())
        anchor = f"theorem-{name}".replace(" ", "-")
        std.note_hyperlink_target(anchor, self.env.docname, anchor, title)
        made = defaultdict(list)
        for page, _, label in (place.partition("/") for place in theorem.get("equations", [])):
            made[page].append(f"{{eq}}`{label}`")
        chapters = "; ".join(f"{{doc}}`/book/{page}` {', '.join(made[page])}" for page in made)
        words = (
            f"**{title}.** {theorem['says']} *{theorem['why']}*"
            + f" Its statement is made from: {chapters}." * bool(made)
        )
        box = part(classes=["theorem"], ids=[anchor])
        self.state.nested_parse(StringList([words], "theorems"), 0, box)
        pattern = rf"^(Theorem {theorem['name']}\b.*?)^(Proof.*?Qed\.)$"
        found = re.search(pattern, text, re.S | re.M)
        before = text[: found.start()].rpartition("\nSection ")[2]
        assumed = [] if re.search(r"^End ", before, re.M) else _ASSUMED.findall(before)
        said = "\n".join([*assumed * ("\nSection " in text), found[1].rstrip()])
        box += [nodes.literal_block(said, said, language="coq"), *folded("Its proof", found[2])]
        out.append(box)
    used = "\n".join(_USED.findall(text))
    return out + folded("The definitions that these statements use", used) if used else out


def badges(app, doctree):
    """Put a badge behind each displayed equation that a theorem is about."""
    found = proved(Path(app.srcdir))
    for node in [n for n in doctree.findall(nodes.math_block) if n.get("label") in found]:
        target = found[node["label"]][0].rpartition("<")[2].rstrip(">`")
        line = nodes.paragraph("", "", refer(target, "proved"), classes=["proved"])
        node.parent.insert(node.parent.index(node) + 1, line)


def setup(app):
    """Register the directive and the badges."""
    add_directive(app, "theorems", theorems, required_arguments=1)
    app.connect("doctree-read", badges)
