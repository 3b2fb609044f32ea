"""HTTP/2 without TLS or over it: streams, flow control, header blocks and limits."""
