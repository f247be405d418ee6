"""Cost terms, one file per mechanism: numbers and one spec in, seconds, bytes or watts out.
Siblings do not import each other."""
