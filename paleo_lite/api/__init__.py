"""The functions of the public Python interface, which `paleo_lite` exports and the commands call."""
