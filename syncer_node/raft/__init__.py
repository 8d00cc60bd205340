"""How the voters agree: one log, one leader a term, and a certificate for every record."""
