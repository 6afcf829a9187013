"""Module in the current folder with the name of another module. It reports its import."""

with open("/root/planted-ran", "a", encoding="utf-8") as mark:  # noqa: PTH123 - may stand for pathlib
    mark.write(f"{__file__}\n")
