"""Published measurements: how true predictions of them are, and the calibrations that are learnt from them."""
