"""Charts of results: Altair specifications, drawn to PNG, SVG or a self-contained HTML page by `render`.

Nothing is computed here: all numbers come from results that other commands print as well.
"""
