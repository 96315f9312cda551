"""A result as one page of HTML that opens offline: text and tables of other pages, with pictures.

No formula lives here, and nothing is read or written: results come in, text goes out.
"""
