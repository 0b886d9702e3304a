"""What happens between the rounds of a run, one idea a file."""
