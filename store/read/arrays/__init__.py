"""The bytes of one column: mapped, raw or compressed, cached, checked, copied into a batch."""
