"""Ways of training together, compared on a real model: same text, same inner loop, equal tokens."""
