"""Entry point of ``python -m broadside.coordinator``, the same as the ``broadside`` command."""

from broadside.coordinator.cli import main

if __name__ == "__main__":
    main()
