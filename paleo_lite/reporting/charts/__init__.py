"""Charts of results: Altair specifications, drawn to PNG, SVG or a self-contained HTML page by `render`.

No formula lives here: every number comes from a result that another command prints too.
"""
