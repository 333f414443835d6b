"""Scores of a question over its samples: how much the answers to it agree."""
