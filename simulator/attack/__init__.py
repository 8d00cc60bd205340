"""Swarms of which a part lies, with real models: what each lie does to the loss, and who is found.
Attackers know the rules. How learners train together without liars is compared in `compare`."""
