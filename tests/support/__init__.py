"""What the property tests share: arrays, masks with their dense form, random problems, checks, planted faults."""
