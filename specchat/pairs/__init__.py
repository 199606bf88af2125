"""Models as files: the catalogue of pairs, what of it is installed, and how files get here."""
