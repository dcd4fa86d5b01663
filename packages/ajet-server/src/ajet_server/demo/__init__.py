"""Models to try ajet with: a real small one from the `demo` extra, and a micro one made on the spot."""
