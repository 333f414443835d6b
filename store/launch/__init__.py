"""Runs the parts of one import or extraction on many workers, and says which parts are whole."""
