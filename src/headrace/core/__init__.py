"""What every layer may use and no layer owns: errors, limits, settings, time, chance, metrics."""
