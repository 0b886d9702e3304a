"""The command `fedpersonal`, its subcommands and their flags."""
