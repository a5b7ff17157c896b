"""Sends state from its holders to members that lack it, over sockets beside the collectives."""
