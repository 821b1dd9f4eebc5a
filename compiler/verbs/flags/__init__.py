"""How the options of a verb become what is asked for, and what a shell completes."""
