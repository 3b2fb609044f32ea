"""Object stores that speak the S3 protocol, in this process and in one of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

BUCKET = "lakes"


@contextmanager
def s3_thread(key: str = "key", secret: str = "secret") -> Iterator[str]:
    """Serve S3 from a thread, with its credentials in the environment; yields its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield f"{host}:{port}"
        server.stop()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A store with one bucket, in a process of its own: delta-rs waits and keeps the GIL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"127.0.0.1:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{address}",
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(retries={"max_attempts": 10, "mode": "standard"}),
    )
    client.create_bucket(Bucket=BUCKET)
    yield address
    client.close()
    process.kill()
    process.wait()
