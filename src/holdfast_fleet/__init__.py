"""The runner fleet: terminations and housekeeping of short-lived machines on AWS."""
