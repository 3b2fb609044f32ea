"""Helpers that tests share, a module for each idea; a test module imports from nowhere else.

| module | what it gives |
|---|---|
| checkout | where the files of the checkout are |
| engines, engine_reads | engines on disks in memory, ways to lose one, and what a reader finds |
| queue_calls, router_calls | short calls to the queues and routers of an engine |
| exchanges, live_readers, websocket_client, wire_fuzz | requests and streams without sockets |
| served_app, transport_routes, http2_client | an application on a socket in a thread |
| servers, speakers, wire_queues | real server processes, spoken to over HTTP/1.1 and HTTP/2 |
| turn_modes, forced_turns, warm_processes | how those processes start, and handle a turn |
| turn_servers, turn_http2, turn_traffic | a whole server without sockets, turn by turn |
| server_lives, proxy | servers that are killed and started again; a network that cuts and delays |
| memory_transport, uploads, upload_server | bodies that arrive in pieces |
| wal_logs, segments, sim_disks, object_stores | parts of storage by themselves |
| lakes, lake_servers, sealed_topics, record_pages | topics in files and lakes, and their readers |
| lake_syncing, spark_copying, spark_program | programs that a test starts, and may kill |
| pipeline_workers, request_counts | workers of pipelines; what a call costs in requests |
| seqs, expected_answers | the seqs of what a reader was given; answers, field by field |
| documented_examples | the examples of a page, run and compared |
| sweeps | what a test marked `long` may spend |

Fixtures that several directories use are here too; a conftest imports them by name.
"""
