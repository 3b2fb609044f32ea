"""The background scrub: every live file is verified in time, and what is damaged is said."""
