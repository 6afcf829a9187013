"""``python -m coordinator`` is the ``broadside`` command."""

from coordinator.cli import main

if __name__ == "__main__":
    main()
