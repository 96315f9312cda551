"""Web page of ``paleo-lite ui``, based on Streamlit. Like the commands it only asks questions; it computes nothing.

`wanted` lists what a person may want, and what the page adds to the records of options; `view` holds the question and
converts it to and from the page's address, the command line and Python; `fields` and `controls` draw a control for
each option; `uploads` reads the files of visitors; `answers` asks the functions of the package; `cards`, `views` and
`profile` show the answers with `show`, in the words of the page (`words`); `page` is the page itself.
"""
