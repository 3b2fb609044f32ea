"""Tables of metric series: what each is called, what it means and where its value is read."""
