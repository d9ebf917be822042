"""Scores over labels as probabilities, and what a right answer cost: on the floor, and by these names here."""

from headstart.measures import log_loss as log_loss
from headstart.measures import probabilities as probabilities
