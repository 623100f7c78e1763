"""Small parts that know nothing of fallbackd and could be a library of their own."""
