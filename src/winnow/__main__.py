"""The command `winnow`, and `python -m winnow`: Ctrl-C ends it with 130 from the first import on."""

import sys


def main() -> None:
    """Run the command line and exit."""
    try:
        from winnow.cli.main import app, run_app

        code = run_app(app)
    except KeyboardInterrupt:
        code = 130  # 128 + SIGINT
    sys.exit(code)


if __name__ == "__main__":
    main()
