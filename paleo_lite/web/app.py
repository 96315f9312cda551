"""Script that Streamlit runs again after every interaction."""

from paleo_lite.web.page import main

main()
