"""Notifications for people: a program that is run, an address that is posted to."""
