"""What Streamlit runs, anew for every click."""

from paleo_lite.web.page import main

main()
