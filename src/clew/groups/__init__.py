"""The groups of a checkpointer's methods: for each subject two thin classes, what they do being in ``flows``."""
