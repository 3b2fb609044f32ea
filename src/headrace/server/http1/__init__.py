"""HTTP/1.1: parsing requests, writing answers, and the state of one connection."""
