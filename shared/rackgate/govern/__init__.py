"""Pure rules of governing: owner to podsets, mutations at creation, start and stop patches."""
