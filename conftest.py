"""Loads the harness's pytest plugin; options and fixtures are in harness/pytest_plugin.py."""

pytest_plugins = ("harness.pytest_plugin",)
