"""The style of the bibliography: the first author's family name first, by which it is sorted.

Works that would be cited alike have letters after their years, 2024a and 2024b.
"""

import re
import unicodedata
from collections import defaultdict
from functools import cache, partial
from string import ascii_lowercase

from pybtex import plugin
from pybtex.style.formatting.plain import Style
from pybtex.style.names.lastfirst import NameStyle as FamilyFirst
from pybtex.style.names.plain import NameStyle as GivenFirst
from pybtex.style.template import FieldIsMissing, join, node, sentence

NAME = "mha_book"


@node
def _names(children, context, role, **separators):
    """Format the persons of a role, the first as ``Family, Given``."""
    try:
        persons = context["entry"].persons[role]
    except KeyError:
        raise FieldIsMissing(role, context["entry"]) from None
    styles = [FamilyFirst(), *[GivenFirst()] * (len(persons) - 1)]
    names = [style.format(person) for style, person in zip(styles, persons, strict=True)]
    return join(**separators)[names].format_data(context)


def _families(entry) -> list[str]:
    persons = entry.persons.get("author") or entry.persons.get("editor") or []
    return [" ".join([*p.prelast_names, *p.last_names]) for p in persons]


def sort_key(entry) -> tuple[str, ...]:
    """Return what an entry is sorted by: its authors' families as they are read, year, title."""
    words = ("  ".join(_families(entry)), *(entry.fields.get(x, "") for x in ("year", "title")))
    plain = (unicodedata.normalize("NFKD", word.casefold()) for word in words)
    return tuple("".join(sign for sign in word if sign.isalnum() or sign == " ") for word in plain)


def tell_apart(entries) -> None:
    """Put letters after the years of entries that are cited alike, in the order of the list."""
    alike = defaultdict(list)
    for entry in sorted(entries, key=sort_key):
        first, *others = _families(entry) or [""]
        year = re.sub("[a-z]$", "", entry.fields.get("year", ""))  # an earlier build's letter
        alike[first, "et al." if len(others) > 1 else (*others,), year].append(entry)
    for (*_, year), some in alike.items():
        if len(some) > 1:
            for entry, letter in zip(some, ascii_lowercase, strict=False):
                entry.fields["year"] = year + letter


class BookStyle(Style):
    """Pybtex's plain style with authors as the order of the list has them."""

    def __init__(self, **options):
        """Sort by the names as they are read: a team's braces are no letters."""
        super().__init__(**options)
        self.sort = partial(sorted, key=sort_key)

    def format_names(self, role, as_sentence=True):
        """Return the template of the names of a role."""
        if role != "author":
            return super().format_names(role, as_sentence)
        found = _names(role, sep=", ", sep2=", and ", last_sep=", and ")
        return sentence[found] if as_sentence else found


def setup(app):
    """Register the style under its name, for ``bibtex_default_style``."""
    plugin.entry_points = cache(plugin.entry_points)  # pybtex asks anew for each citation
    plugin.register_plugin("pybtex.style.formatting", NAME, BookStyle)
    app.connect("builder-inited", _tell_all_apart)


def _tell_all_apart(app) -> None:
    tell_apart(app.env.get_domain("cite").bibdata.data.entries.values())
