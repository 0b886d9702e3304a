"""Classification of handwritten digits, of clients who write differently."""
