"""Web page of ``paleo-lite ui``, based on Streamlit. Like the commands it only calls the API; it computes nothing.

`view` holds the values of the controls and converts them to and from the page's address; `controls` draws the controls;
`answers` calls the API and caches the results; `show` displays tables and charts; `views` draws the four views of the
page; `page` is the page itself.
"""
