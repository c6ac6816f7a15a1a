"""How fast the harness is, and where its time goes."""
