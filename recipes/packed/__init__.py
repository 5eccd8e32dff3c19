"""What is measured on a GGUF file of a pre-trained model."""
