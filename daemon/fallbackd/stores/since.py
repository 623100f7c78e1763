"""What the facts of an earlier run say about time."""

from collections.abc import Callable, Mapping

Since = Callable[[Mapping[str, str]], tuple[float, float]]
"""From the facts: now on the clock of the records, and for how many seconds no daemon ran."""
