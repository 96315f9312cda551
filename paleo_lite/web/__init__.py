"""The page to explore in a browser: ``paleo-lite ui``. Like a command it fetches, calls and shows; no formula is here.

`view` is what the controls say and how that is written in an address; `controls` draws them; `answers` calls what the
commands call and remembers it; `show` puts tables and charts on the page; `views` are what is shown; `page` is all.
"""
