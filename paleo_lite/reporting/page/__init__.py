"""Reports as one self-contained HTML page, with the tables and charts of results.

Nothing is computed, read or written here: functions take results and return text.
"""
