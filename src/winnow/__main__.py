"""`python -m winnow`: the same as the command `winnow`."""

from winnow.cli.main import main

if __name__ == "__main__":
    main()
