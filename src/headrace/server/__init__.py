"""The serving layer: sockets, connections and what travels on them, which nothing else has."""
