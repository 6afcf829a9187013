"""``python -m broadside.coordinator`` is the ``broadside`` command."""

from broadside.coordinator.cli import main

if __name__ == "__main__":
    main()
