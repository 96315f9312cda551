"""What Streamlit runs, anew for every click."""

from paleo_lite.ui.page import main

main()
