"""Lies in the current folder under the names of modules. Says so where something imports it."""

with open("/root/planted-ran", "a", encoding="utf-8") as mark:  # noqa: PTH123 - may stand for pathlib
    mark.write(f"{__file__}\n")
