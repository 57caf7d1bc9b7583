"""Checkpoints in a bucket: bytes on the network and processor time, beside a plain upload.

    python benchmarks/checkpoint_s3.py [--rounds 4] [--print]

A real S3 server on this machine speaks HTTPS, as clouds do, behind a proxy that counts the bytes of
its connections; both are other processes. A round does these things with one layer after the other:
write it; make and hash the same file only; upload the same bytes with botocore, in parts of the
same size. It seals the checkpoint. Then, with one layer after the other: read it; hash and parse
the same file only; download it with botocore. Processor time is this process's, with all threads.
--print writes no result file.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import botocore.session
import safetensors.torch
import torch

from bamboo_agent.payloads.kinds import FileRecord, LayerRecord
from bamboo_agent.storage.checkpoint import Checkpoints, Facts, Header
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import Manifest
from bamboo_devcluster import object_store
from bamboo_sim.programs import arguments, results_file

MEGABYTES = (200, 100, 64, 24, *[8] * 6, *[0.25] * 32)
"""Of each layer's file: embeddings, blocks, and many small ones."""
PART_BYTES = 64 << 20
BUCKET = "checkpoints"
NOTE = (
    "bytes_per_byte: bytes that the server is sent while a checkpoint is written, with TLS,"
    " headers, the manifest and requests that are tried again, over those of the layers' files,"
    " goal 1.05; plain: the same with botocore. read_bytes_per_byte: bytes that the server sends"
    " while it is read. Processor seconds of a GB: write, with making and hashing the files;"
    " prepare, making and hashing alone; plain, an upload of the same bytes with botocore; read,"
    " with hashing and parsing; check, hashing and parsing alone; plain_read, a download with"
    " botocore. upload_over_plain: median over rounds of (write - prepare) / plain;"
    " download_over_plain: of (read - check) / plain_read; write_over_plain and read_over_plain:"
    " without subtraction"
)


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None]
) -> None:
    try:
        while data := await reader.read(1 << 20):
            count(len(data))
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()


def serve_proxy(port: int, pipe: Connection, sent: Any, received: Any) -> None:
    """Forward to the port; tells its own port. sent, received: count the bytes that go there and
    come from there."""

    def adds(counter: Any) -> Callable[[int], None]:
        def add(count: int) -> None:
            counter.value += count

        return add

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(
            _forward(reader, back, adds(sent)), _forward(there, writer, adds(received))
        )

    async def serve() -> None:
        server = await asyncio.start_server(connect, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def record(megabytes: float) -> LayerRecord:
    """A layer whose file has so many megabytes: weights and the state of AdamW."""
    count = int(megabytes * 1e6) // 12
    names = ("param/w", "optim/w/exp_avg", "optim/w/exp_avg_sq")
    return LayerRecord({name: torch.rand(count) for name in names}, "{}")


class Turns:
    """Each thing that a round does to a layer."""

    def __init__(self) -> None:
        self._records = [record(size) for size in MEGABYTES]
        self._files = [_file(x) for x in self._records]
        self.num_bytes = sum(map(len, self._files))
        self._checkpoints = Checkpoints(f"s3://{BUCKET}/ours", "uid")
        self._checkpoints.probe()
        self._client = botocore.session.get_session().create_client(
            "s3", region_name=object_store.REGION
        )
        self._step = 1
        self._written: list[FileRecord] = []
        self._newest: Manifest | None = None

    def write(self, layer: int) -> None:
        """Write its file, and after the last one the manifest."""
        record_ = self._records[layer]
        file = self._checkpoints.write_layer(
            attempt=0, step=self._step, layer=layer, record=record_
        )
        self._written.append(file)
        if len(self._written) == len(self._records):
            header = Header(0, self._step, 0, BatchShape(8, 2, 4))
            self._newest = self._checkpoints.seal(header, self._written)

    def prepare(self, layer: int) -> None:
        """Serialize and hash it."""
        hashlib.sha256(_file(self._records[layer])).hexdigest()

    def plain(self, layer: int) -> None:
        """Upload the bytes of its file with botocore."""
        data, where = self._files[layer], {"Bucket": BUCKET, "Key": f"plain/{layer}"}
        if len(data) <= PART_BYTES:
            self._client.put_object(**where, Body=data)
            return
        upload = self._client.create_multipart_upload(**where)["UploadId"]
        parts = []
        for number, at in enumerate(range(0, len(data), PART_BYTES), 1):
            given = {"PartNumber": number, "UploadId": upload}
            found = self._client.upload_part(**where, **given, Body=data[at : at + PART_BYTES])
            parts.append({"PartNumber": number, "ETag": found["ETag"]})
        self._client.complete_multipart_upload(
            **where, UploadId=upload, MultipartUpload={"Parts": parts}
        )

    def read(self, layer: int) -> None:
        """Read it from the checkpoint, with the manifest once."""
        if layer == 0:
            assert self._newest is not None
            self._layers = self._checkpoints.read_layers(self._newest, range(len(self._records)))
        assert next(self._layers).tensors.keys() == self._records[layer].tensors.keys()

    def check(self, layer: int) -> None:
        """Hash and parse its file."""
        hashlib.sha256(self._files[layer]).hexdigest()
        safetensors.torch.load(self._files[layer])

    def plain_read(self, layer: int) -> None:
        """Download the file with botocore."""
        found = self._client.get_object(Bucket=BUCKET, Key=f"plain/{layer}")["Body"].read()
        assert len(found) == len(self._files[layer])

    def clean_up(self) -> None:
        """Keep one checkpoint on the disk of the server, and begin the next one."""
        assert self._newest is not None
        self._checkpoints.prune(keep=1, newest=self._newest, facts=Facts())
        self._step += 1
        self._written = []


def _file(given: LayerRecord) -> bytes:
    data: bytes = safetensors.torch.save(given.tensors, {"extra": given.extra})
    return data


def run(rounds: int) -> list[dict[str, float]]:
    """For each round: processor seconds for a GB of each turn, and bytes sent and received for a
    byte."""
    samples = []
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        object_store.running(Path(folder, "s3"), is_secure=True) as store,
    ):
        store.make_bucket(BUCKET)
        here, there = context.Pipe()
        sent, received = (context.Value("q", 0, lock=False) for _ in range(2))
        arguments_ = (store.port, there, sent, received)
        proxy = context.Process(target=serve_proxy, args=arguments_, daemon=True)
        proxy.start()
        os.environ.update(store.environment)
        os.environ["AWS_ENDPOINT_URL"] = f"https://127.0.0.1:{here.recv()}"
        turns = Turns()
        for number in range(rounds + 1):
            sample = one_round(turns, sent, received)
            if number:  # the first round fills caches
                samples.append(sample)
            print(f"round {number} of {rounds}", flush=True)
        proxy.kill()
        proxy.join()
    return samples


def one_round(turns: Turns, sent: Any, received: Any) -> dict[str, float]:
    """A sample of each turn."""
    sample: dict[str, float] = defaultdict(float)

    def measure(turn: Callable[[int], None], layer: int) -> None:
        before, began = (sent.value, received.value), time.process_time()
        turn(layer)
        name, used_s = turn.__name__, time.process_time() - began
        sample[f"{name}_cpu_s_per_gb"] += used_s / turns.num_bytes * 1e9
        sample[f"{name}_sent"] += (sent.value - before[0]) / turns.num_bytes
        sample[f"{name}_received"] += (received.value - before[1]) / turns.num_bytes

    for order in (
        (turns.write, turns.prepare, turns.plain),
        (turns.read, turns.check, turns.plain_read),
    ):
        for layer in range(len(MEGABYTES)):
            for turn in order:
                measure(turn, layer)
    turns.clean_up()
    return {name: round(value, 5) for name, value in sample.items()}


def figures(samples: list[dict[str, float]]) -> dict[str, float]:
    """Medians, and ratios round by round."""

    def median(of: Callable[[dict[str, float]], float]) -> float:
        return round(statistics.median(map(of, samples)), 4)

    def cpu(x: dict[str, float], name: str) -> float:
        return x[f"{name}_cpu_s_per_gb"]

    names = ("write", "prepare", "plain", "read", "check", "plain_read")
    seconds = {f"{n}_cpu_s_per_gb": median(lambda x, n=n: cpu(x, n)) for n in names}  # type: ignore[misc]
    return {
        "bytes_per_byte": median(lambda x: x["write_sent"]),
        "plain_bytes_per_byte": median(lambda x: x["plain_sent"]),
        "read_bytes_per_byte": median(lambda x: x["read_received"]),
        "upload_over_plain": median(
            lambda x: (cpu(x, "write") - cpu(x, "prepare")) / cpu(x, "plain")
        ),
        "download_over_plain": median(
            lambda x: (cpu(x, "read") - cpu(x, "check")) / cpu(x, "plain_read")
        ),
        "write_over_plain": median(lambda x: cpu(x, "write") / cpu(x, "plain")),
        "read_over_plain": median(lambda x: cpu(x, "read") / cpu(x, "plain_read")),
        **seconds,
    }


def main() -> None:
    """Measure, write the file, print the figures."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--rounds", type=arguments.at_least(1), default=4)
    parser.add_argument("--print", action="store_true", help="write no result")
    given = parser.parse_args()
    torch.set_num_threads(1)
    samples = run(given.rounds)
    values = figures(samples)
    if not given.print:
        rows = results_file.columns(samples)
        results_file.write("checkpoint_s3", samples=rows, figures=values, note=NOTE)
    print(json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
