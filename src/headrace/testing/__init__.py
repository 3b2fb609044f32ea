"""What a user's own tests can use: a server process, and disks that crash and fail on command.

| module | what it gives |
|---|---|
| `process` | `ServerProcess`: a server on a directory, stopped or killed at the end of a block |
| `simdisk` | `SimDisk`: a disk in memory that knows what a power loss would leave of it |
| `diskmodel` | the rules by which it knows: what is durable, what is pending, what may be torn |
| `faultfs` | `FaultFilesystem`: errors, short writes and slow or lying syncs at chosen calls |

The clock that moves when it is told to is `headrace.core.clock.ManualClock`.
"""
