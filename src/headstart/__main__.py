"""`python -m headstart` is the command line."""

from headstart.cli.main import main

if __name__ == "__main__":
    main()
