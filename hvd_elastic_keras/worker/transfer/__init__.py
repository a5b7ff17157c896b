"""State goes from those who hold it to those who lack it, over sockets beside the collectives."""
