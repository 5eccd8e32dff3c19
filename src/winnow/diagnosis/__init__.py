"""What a model does with a prompt, layer by layer, and how steady what its steps attend to is."""
