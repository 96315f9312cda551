"""Kinds of question: one record of options each, from which command line, Python, page and documentation are made."""
