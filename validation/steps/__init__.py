"""Steps of whole networks on one device."""
