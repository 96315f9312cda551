"""The version, in the one place where it stands: the wheel takes it from here."""

__version__ = "0.1.0"
