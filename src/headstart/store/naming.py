"""Names of files and labels for a page that others will read: no folders, no markup. No torch."""

import re

from headstart.store.origins import without_folders


def bare(name: str) -> str:
    """A file's name without its folders, for a page that others will read.

    >>> bare("/home/jane/data/train.csv"), bare(r"C:\\\\Users\\\\jane\\\\base"), bare("held-out rows of a/train.csv")
    ('train.csv', 'base', 'held-out rows of train.csv')
    """
    return plain(without_folders(name)) or "(unnamed)"


def plain(text: str) -> str:
    """Words that cannot become markup, metadata or a table's edge."""
    line = "".join(mark if mark.isprintable() else " " for mark in text)
    return " ".join(re.sub(r"[`|<>\[\]]", " ", line).split())


def identifier(name: str) -> str:
    """A name as hubs write data sets."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "data"
