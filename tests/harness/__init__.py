"""The crash explorer, the ledgers and the sweeps: they judge the engine over many crashes.

`explore` replays a workload's disk operations to every crash point, starts an engine on what each
could have left, and asks `oracle` whether `model` allows what it finds.  The ledgers do the same
for real processes, which are killed instead: `engine_worker` is such a process, and the workers of
`job_fleet` and the producers of `router_load` are clients of a server.  `power_machine` has a disk
that loses power (`fuse_disk`, `write_log`) with a real filesystem on it, and the `power_` actors
say what a server must still know then.  None of this is for users: what their tests can use is in
`headrace.testing`.
"""
