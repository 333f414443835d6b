"""Stores made from stores: merged, cut down, exported, with columns computed from others."""
