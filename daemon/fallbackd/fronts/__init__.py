"""The law of fronts: translate one foreign protocol to engine calls and back. No decisions."""
