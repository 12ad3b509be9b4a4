"""In a translation, the numbers of cells and the anchors of headings, which myst would lose.

Sphinx parses each translated message by itself, without the notebook that it is from, and myst
then takes the message's headings for those of the page.
"""

from myst_nb import sphinx_


def _keep_glue(app, config) -> None:
    """Give a translated message what the cells of its page glued."""
    if config.language in (None, "en"):
        return
    load, parse, page = sphinx_.load_renderer, sphinx_.Parser.parse, {}

    def load_renderer(name):
        def make(*given):
            page["nb_renderer"] = load(name)(*given)
            return page["nb_renderer"]

        return make

    def parse_with_glue(self, text, document):
        is_message = document.current_source.endswith("<translated>")
        if not is_message:
            return parse(self, text, document)
        document.attributes.update(page)
        metadata = app.env.metadata[app.env.docname]
        slugs = metadata.get("myst_slugs")
        parse(self, text, document)
        document.attributes.pop("nb_renderer", None)
        metadata["myst_slugs"] = slugs

    sphinx_.load_renderer, sphinx_.Parser.parse = load_renderer, parse_with_glue


def setup(app):
    """Register the event."""
    app.connect("config-inited", _keep_glue)
