"""The lake as a server reads it: records that topics have let go, without Spark."""
