"""What a model is: reading the files models come in."""
