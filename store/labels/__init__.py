"""The labels of traces: the rule, files of scores, and labelling a store again."""
